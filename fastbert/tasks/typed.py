"""Recognising JSON where the name does not tell a file's format, as on standard input."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ..errors import DataError
from ..parquet_files import SUFFIXES as PARQUET
from ..text_files import without_gz
from .bad_rows import STRICT, BadRows, called
from .exported import PAIRS, SINGLE
from .files import read_lines, shorten
from .hub_files import JSON_LINES, Record, json_line_records, json_list_records

TYPED = "-"
_NO_LINES = (".csv", ".tsv", *JSON_LINES, *PARQUET)


def read_typed(
    path: str | os.PathLike, lines: Iterator[tuple[int, str]], forms: Sequence[Sequence[str]], bad_rows: BadRows
) -> tuple[Iterator[Record | None] | None, Iterator[tuple[int, str]]]:
    """The records of JSON lines or of one JSON list.

    Args:
        path: the file, or ``-`` for standard input.
        lines: the lines of the file, from `read_lines` with the same bad_rows.
        forms: sets of columns. Since a text may look like JSON, an object is only recognised if it has all columns of
            one of these.
        bad_rows: what to do with lines or objects that cannot be used.

    Returns:
        the records, by the form of the first object, None among them for lines that were refused before; and no lines.
        Or None for a file that is not such JSON, and its lines.
    """
    read = []
    for line in lines:
        read.append(line)
        if line[1].strip():
            break
    first = read[-1][1].strip() if read else ""
    if first.startswith("["):
        read += lines
        values = json_or_none("\n".join(text for _, text in read))
        if isinstance(values, list) and values and has_form(values[0], forms):
            return json_list_records(path, values, bad_rows), iter(())
    elif has_form(json_or_none(first), forms):
        # Lines before it that were not UTF-8 were rows too, and are counted.
        lost = [None] * (read[-1][0] - len(read))
        return itertools.chain(lost, json_line_records(path, itertools.chain(read, lines), bad_rows)), iter(())
    return None, itertools.chain(read, lines)


def text_lines(path: str | os.PathLike, bad_rows: BadRows = STRICT) -> Iterator[tuple[int, str]]:
    """The lines of a file with one text in each, with their numbers; `-` for standard input.

    Args:
        path: the file.
        bad_rows: what to do with lines that cannot be read.

    Raises:
        DataError: the file is a table or JSON, whose lines are not texts; or as `read_lines` does.
    """
    where = f"{called(path)}: expected a text in each line"
    told = "name the column of its texts (--column), or write them to a file, a line each"
    if without_gz(path).lower().endswith(_NO_LINES):
        raise DataError(f"{where}, got a table or JSON by its name: {told}")
    for number, line in read_lines(path, bad_rows):
        if number == 1 and has_form(json_or_none(line), (*SINGLE, *PAIRS)):
            raise DataError(f"{where}, got JSON, {shorten(line)!r}: {told}")
        yield number, line


def has_form(value: Any, forms: Iterable[Sequence[str]]) -> bool:
    """Whether a value is an object with all columns of one of these forms."""
    return isinstance(value, dict) and any(set(form) <= set(value) for form in forms)


def json_or_none(text: str) -> Any:
    """The value of a JSON text; None if it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
