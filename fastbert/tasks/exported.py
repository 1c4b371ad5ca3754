"""GLUE's tasks as they are exported from data-set hubs: other names of columns, numbers for labels, .csv and .jsonl.

Such a file is known by its form: JSON lines, comma-separated, with a column ``idx``, or with names of columns that the
authors' own files do not have. Labels are the words of the task or their numbers, in the order of GLUE's publication;
-1 says that there is none.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import DataError
from .base import Row
from .csv_records import csv_fields, csv_records
from .files import read_json_lines, read_lines, shorten

if TYPE_CHECKING:
    from .text import TextTask

SINGLE = (("sentence",), ("text",))
PAIRS = (
    *(("sentence1", "sentence2"), ("premise", "hypothesis"), ("text1", "text2")),
    *(("question1", "question2"), ("question", "sentence")),
)


def read_exported(task: TextTask, path: str | os.PathLike) -> list[Row] | None:
    """The rows of an exported file; None for a file of another form.

    Raises:
        DataError: no rows that can be used; or by the task's ``bad_rows``.
    """
    if os.fspath(path).endswith((".jsonl", ".ndjson")):
        records = _json_records(task, path)
    else:
        found = _table(task, path)
        if found is None:
            return None
        records = found
    rows = []
    for index, (number, values) in enumerate(records):
        try:
            rows.append(_row(task, index, values))
        except ValueError as error:
            task.bad_rows.refuse(f"{path}, line {number}: {error}")
    if not rows:
        raise DataError(f"{path}: expected rows, got none that can be used")
    return rows


def _forms(task: TextTask) -> tuple[tuple[str, ...], ...]:
    """The names that the text columns may have, the task's own first."""
    return (task.text_columns, *(SINGLE if len(task.text_columns) == 1 else PAIRS))


def _json_records(task: TextTask, path: str | os.PathLike) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, values in read_json_lines(path, task.bad_rows):
        yield number, {key: value for key, value in values.items() if value is not None}


def _table(task: TextTask, path: str | os.PathLike) -> Iterator[tuple[int, dict[str, str]]] | None:
    """Numbered rows by column of an exported .csv or .tsv; None where the first line is no header of one."""
    lines = read_lines(path, task.bad_rows)
    first = next(lines, (1, ""))
    tabs = "\t" in first[1]
    header = [name.strip() for name in (first[1].split("\t") if tabs else csv_fields(first[1]))]
    form = next((form for form in _forms(task) if set(form) <= set(header)), None)
    if form is None or len(header) < 2 or (tabs and "idx" not in header and form == task.text_columns):
        return None
    if tabs:
        return _tab_records(lines, header)
    return csv_records([first, *lines], header)


def _tab_records(lines: Iterator[tuple[int, str]], header: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    for number, line in lines:
        if line.strip():
            fields = [_unquoted(field.strip()) for field in line.split("\t")]
            yield number, dict(zip(header, fields, strict=True)) if len(fields) == len(header) else {}


def _unquoted(field: str) -> str:
    """A field that a CSV writer has put in quotes, because it holds some; authors' quotes do not come in such pairs."""
    inner = field[1:-1]
    if len(field) < 2 or not field.startswith('"') or not field.endswith('"') or '"' in inner.replace('""', ""):
        return field
    return inner.replace('""', '"')


def _row(task: TextTask, index: int, values: dict[str, Any]) -> Row:
    form = next((form for form in _forms(task) if set(form) <= set(values)), None)
    if form is None:
        got = ", ".join(map(str, values)) or "another number of columns, or a quote that is not closed"
        raise ValueError(f"expected the columns {', '.join(_forms(task)[0])}, got {shorten(got)}")
    texts = [values[name] for name in form]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(f"expected texts in {', '.join(form)}, got {shorten(repr(texts))}")
    texts = tuple(text.strip() for text in texts)
    label = _label(task, next((values[name] for name in (task.label_column, "label") if name in values), None))
    task.check_texts(texts, labelled=label is not None)
    name = next((values[name] for name in ("idx", task.id_column, "index", "id") if name in values), index)
    return Row(str(name), texts, None if label is None else task.parse(label))


def _label(task: TextTask, value: Any) -> str | None:
    """A label as the task's own files have it."""
    if value is None or str(value) in ("-1", "-1.0"):
        return None
    text = str(value).strip()
    # The class's order: the instance's may be that of a model.
    words = getattr(type(task), "labels", ())
    if text not in words and text.isascii() and text.isdigit() and int(text) < len(words):
        return words[int(text)]
    return text
