"""GLUE's tasks as exported by data-set hubs: other names of columns, numbers for labels, .csv, .jsonl and .parquet.

Such a file is recognised by its form: JSON lines, Parquet, comma-separated, with a column ``idx``, or with names of
columns that the authors' own files do not have (``label``, where theirs has another name). What its labels mean is told
by `class_labels`.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from ..errors import DataError
from ..text_files import without_gz
from .bad_rows import called
from .base import LabelColumns, Row
from .class_labels import check_class_names, say_if_number
from .csv_records import csv_fields, csv_records
from .files import shorten
from .hub_files import Record
from .parts import SPLIT, Parts
from .table_records import fields_of, tab_records, table_records, to_records
from .tables import check_once

if TYPE_CHECKING:
    from .text import TextTask

_COLUMN = re.compile("[1-9][0-9]{0,3}")
_NUMBER = re.compile("0|[1-9][0-9]{0,3}")
_NAME = re.compile(r"[\w\-](?:[\w .\-]*[\w\-])?")  # of a column
SINGLE = (("sentence",), ("text",))
PAIRS = (
    *(("sentence1", "sentence2"), ("premise", "hypothesis"), ("text1", "text2")),
    *(("question1", "question2"), ("question", "sentence")),
    *(("premise", "hypo"), ("context", "hypothesis")),  # XNLI's, and ANLI's
)


def exported_rows(
    task: TextTask, path: str | os.PathLike, records: Iterable[tuple[int, Record | None]], tabs: bool = False
) -> Iterator[Row]:
    """Yields the rows of a task from records.

    Args:
        task: the task.
        path: the file, for messages.
        records: records with their numbers from 0; one that is None has already been refused.
        tabs: whether tabs separate the columns of the file.

    Raises:
        DataError: by the task's ``bad_rows``.
    """
    seen: set[str] = set()
    looked_at, columns, parts = False, (), Parts(path, tabs)
    for index, record in records:
        if record is None:
            continue
        record = _with_columns(record)
        if not looked_at and (record.values or record.nulls):
            _look_at_columns(task, path, record)
            looked_at = True
        if SPLIT in record.values:
            columns = columns or tuple(record.values)
            parts.add(record.values[SPLIT])
        try:
            row = _row(task, index, record)
            task.check_id(row.id, seen, numbered=naming_column(task, record.values) is None)
        except ValueError as error:
            task.bad_rows.refuse(f"{record.where}: {error}")
            continue
        yield row
    if not task.predicting:
        parts.say(columns)


def _look_at_columns(task: TextTask, path: str | os.PathLike, record: Record) -> None:
    """Notes where labels are looked for, and warns of labels that may mean something else than the task's, by the first
    record of a file. Raises DataError for class names in another order."""
    names = task.label_fields
    task.looked_for = LabelColumns(record.where, names, (*record.values, *record.nulls))
    if task.predicting:  # labels do not matter
        return
    classes = next((record.names[name] for name in names if name in record.names), ())
    check_class_names(task, path, classes)
    if task.label_named and not classes:
        say_if_number(task, path, record.values.get(task.label_column))


def _with_columns(record: Record) -> Record:
    """KLUE-STS has three labels of a pair in one object; its keys, ``label`` among them, become columns."""
    inner = record.values.get("labels")
    return replace(record, values={**inner, **record.values}) if isinstance(inner, dict) else record


def read_table_of_hub(
    task: TextTask, path: str | os.PathLike, first: tuple[int, str], lines: Iterator[tuple[int, str]], lost: int
) -> Iterator[Row] | None:
    """The rows of an exported .csv or .tsv; None for a file of another form, of which no further line is then read.

    Args:
        task: the task.
        path: the file, for messages.
        first, lines: the file's first line and the following ones, with their numbers.
        lost: how many lines before the first were refused; without a header they were rows.
    """
    if _without_header(task, first[1]):
        records = _numbered_columns(task, path, first, lines, lost)
    elif _is_official(task, first[1]):
        records = None
    else:
        records = _below_header(task, path, first, lines)
    return None if records is None else exported_rows(task, path, records, tabs="\t" in first[1])


def text_forms(task: TextTask) -> tuple[tuple[str, ...], ...]:
    """The names that the text columns may have, the task's own first."""
    if task.texts_named:
        return (task.text_columns,)
    return (task.text_columns, *(SINGLE if len(task.text_columns) == 1 else PAIRS))


def with_own_header(task: TextTask, lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """The lines of a file. If the first is nothing but another name of the task's text column, it is a header, and is
    replaced by the task's own; but the only line of a file is a text."""
    read = list(itertools.islice(lines, 1))
    others = [form for form in text_forms(task) if form != task.text_columns]
    if read and (read[0][1].strip(),) in others:
        for line in lines:
            read.append(line)
            if line[1].strip():
                read[0] = (read[0][0], task.text_columns[0])
                break
    return itertools.chain(read, lines)


def id_names(task: TextTask) -> tuple[str, ...]:
    """The names that the column of row ids may have, in the order in which they are looked for."""
    names = dict.fromkeys(() if task.only_texts else ("idx", task.id_column, "index", "id"))
    return tuple(name for name in names if name not in (*task.text_columns, *task.label_fields))


def naming_column(task: TextTask, columns: Collection[str]) -> str | None:
    """The column of a file that has the ids of its rows; None if rows are numbered."""
    of_source = bool(task.source_columns) and set(task.source_columns) <= set(columns)
    return next((name for name in id_names(task) if name in columns and not (of_source and name == "id")), None)


def _without_header(task: TextTask, first: str) -> bool:
    """Whether columns are given by numbers, and the file's first line does not name them so. A header of numbers has
    nothing but different ones, and perhaps no name for an index; a class, or a score, among texts is a row's."""
    used = {*task.text_columns, *(task.label_fields if task.label_named else ())}
    written = [name.strip() for name in fields_of(first, "\t" if "\t" in first else ",")]
    names = written[1:] if written[:1] == [""] else written
    numbers = len(set(names)) == len(names) and all(map(_NUMBER.fullmatch, names))
    return all(map(_COLUMN.fullmatch, used)) and not (numbers and used <= set(names))


def _is_official(task: TextTask, first: str) -> bool:
    """Whether a first line is the header of the task's own files. Hubs call the column of labels "label" for every
    task."""
    names = [name.strip() for name in first.split("\t")]
    hub = "idx" in names or ("label" in names and task.label_column not in names)
    hub = hub or (task.label_named and len(task.label_fields) > 1)  # a column for each label
    return "\t" in first and set(task.text_columns) <= set(names) and not hub


def _below_header(
    task: TextTask, path: str | os.PathLike, first: tuple[int, str], lines: Iterator[tuple[int, str]]
) -> Iterator[tuple[int, Record | None]] | None:
    """(index, record) of the rows of a table with a header; None if the first line is none with the task's texts."""
    found = _header(task, first[1], typed=os.fspath(path) == "-")
    # A .csv of one column has CSV's quotes too; in other files with one column, lines are literal texts.
    if found is None or (len(found[2]) < 2 and not _is_csv(path)):
        return None
    separator, form, columns = found
    used = {*form, *task.labels_at(columns), naming_column(task, columns)}
    check_once([name for name in columns if name in used], columns, f"{called(path)}, line {first[0]}")
    return table_records(path, first, columns, separator, lines, task.bad_rows)


def _header(task: TextTask, line: str, typed: bool = False) -> tuple[str, tuple[str, ...], list[str]] | None:
    """What separates the columns of a header, which of `text_forms` it has, and all columns; None for other lines.

    Of ``typed`` lines one with a blank beside a comma or with other signs than those of names is a sentence.
    """
    for separator in "\t" if "\t" in line else ",;|":  # spreadsheets write semicolons where the comma is in numbers
        raw = fields_of(line, separator)
        if typed and separator != "\t" and not all(map(_NAME.fullmatch, raw)):
            continue
        written = [name.strip() for name in raw]
        # GLUE's diagnostic set with labels has Premise, Hypothesis, Label; spreadsheets often have capitals too.
        named = task.label_fields if task.label_named else ()
        for columns in (written, [name if name in named else name.lower() for name in written]):
            form = next((form for form in text_forms(task) if set(form) <= set(columns)), None)
            if form is not None:
                return separator, form, columns
    return None


def _is_csv(path: str | os.PathLike) -> bool:
    return without_gz(path).lower().endswith(".csv")


def _numbered_columns(
    task: TextTask, path: str | os.PathLike, first: tuple[int, str], lines: Iterator[tuple[int, str]], lost: int
) -> Iterator[tuple[int, Record | None]] | None:
    """(index, record) of the rows of a file without a header, whose columns are called 1, 2, ...; None for standard
    input with fewer columns, which are nothing but texts."""
    last, lines = max(map(int, task.text_columns)), itertools.chain([first], lines)
    # Texts may contain commas and tabs. Commas separate columns only in a .csv whose first line begins with a quote, or
    # has too few tabs for the columns that are wanted.
    tabs = first[1].count("\t")
    if _is_csv(path) and (not tabs or first[1].startswith('"') or tabs + 1 < last <= len(csv_fields(first[1], ","))):
        found = csv_records(lines, None, before=first[0] - 1)
        row = next(found, (first[0], {}))
        count, rows = len(row[1] or ()), enumerate(itertools.chain([row], found), lost)
    else:
        count = tabs + 1
        rows = enumerate(tab_records(lines, [str(number) for number in range(1, count + 1)], first[0] - 1), lost)
        if count < last and os.fspath(path) == "-":
            return None
    if count < last:
        raise DataError(
            f"{called(path)}, line {first[0]}: expected at least {last} columns without a header, separated by tabs "
            f"or, in a .csv, by commas, got {count or 'a quote that is not closed'}: {shorten(first[1])!r}"
        )
    return to_records(path, rows)


def _row(task: TextTask, index: int, record: Record) -> Row:
    values, forms = record.values, text_forms(task)
    # A null text counts as empty: every row of a test file must be answered, even with half a pair.
    columns = {*values, *record.nulls}
    form = next((form for there in (set(values), columns) for form in forms if set(form) <= there), None)
    if form is None:
        got = ", ".join(map(str, values)) or "another number of columns, or a quote that is not closed"
        expected = f"column{'s' * (len(forms[0]) > 1)} {', '.join(forms[0])}"
        raise ValueError(f"expected the {expected}, got {shorten(got)}{task.columns_hint if values else ''}")
    pair = next((pair for pair in PAIRS if len(form) == 1 and form[0] in pair and set(pair) <= columns), None)
    if pair is not None and not task.texts_named:
        raise ValueError(f"expected one text, got a pair in {', '.join(pair)}{task.columns_hint}")
    texts = [values.get(name, "") for name in form]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(f"expected texts in {', '.join(form)}, got {shorten(repr(texts))}")
    texts = tuple(text.strip() for text in texts)
    label = task.label_in(record)
    task.check_texts(texts, labelled=label is not None)
    names = naming_column(task, values)
    return Row(str(index if names is None else values[names]).strip(), texts, label)
