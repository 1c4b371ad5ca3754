"""The texts of a file, for commands that need nothing else of it: its lines, or one column of a table."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from ..errors import InputError
from .bad_rows import STRICT, BadRows
from .config import TaskOptions
from .text_classification import TextClassification
from .typed import text_lines


def texts_of(
    path: str | os.PathLike, column: str | None = None, bad_rows: BadRows = STRICT
) -> Iterator[tuple[int, str]]:
    """The texts of a file with their numbers, from 1, as they are read.

    Args:
        path: the file, or ``-`` for standard input.
        column: the column of a table (.tsv, .csv, .jsonl, .parquet) that holds the texts, or its number, from 1, in one
            without a header; None for a file with one text in each line.
        bad_rows: what to do with lines or rows that cannot be read.

    Raises:
        InputError: the name of the column is empty.
        DataError: the file has no such column, a row cannot be read, or there are no rows; or as `text_lines` does.
    """
    if column is None:
        return text_lines(path, bad_rows)
    if not column.strip():
        raise InputError(f"column must be the name or the number of one, got {column!r}")
    table = _Column()
    table.configure(TaskOptions(text_columns=(column,)))
    table.predicting = True  # so that a column of texts may have the name of the one of labels
    table.bad_rows = bad_rows
    return ((int(row.id) + 1, row.texts[0]) for row in table.rows(path))


class _Column(TextClassification):
    """A user's own files as the tasks read them; every row has a text, an empty one too, as empty lines do."""

    name = "column"
    text_columns = ()
    own_files = False
    columns_hint = " (--column names another)"
    only_texts = True

    def check_texts(self, texts: Sequence[str], labelled: bool) -> None:
        """Accepts every text."""
