"""Rows of tables by the names of their columns: CSV, and tab-separated files with the quotes of CSV writers."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from .bad_rows import BadRows, called
from .csv_records import csv_fields, csv_records
from .hub_files import Record
from .tab_rows import quoted_rows
from .tables import rows_below, without_blank_end


def fields_of(line: str, separator: str) -> list[str]:
    """The fields of a line; empty if it breaks CSV's rules, which do not hold where tabs separate the columns."""
    return line.split("\t") if separator == "\t" else csv_fields(line, separator)


def table_records(
    path: str | os.PathLike,
    header: tuple[int, str],
    columns: Sequence[str],
    separator: str,
    lines: Iterator[tuple[int, str]],
    bad_rows: BadRows,
) -> Iterator[tuple[int, Record | None]]:
    """(index, record) of every row below a header. A record is None if its line has been refused, and has no values if
    the row has another number of columns, or a quote that is not closed.

    Args:
        path: the file, for messages.
        header: the line of the header, with its number.
        columns: the names of the columns.
        separator: what separates them.
        lines: the lines below, with their numbers.
        bad_rows: what to do with the header in a later line.
    """
    lines = rows_below(header, lines, columns, path, bad_rows)
    # Not by `numbered`: lines are read ahead, so that lines are refused before earlier rows are yielded; for them there
    # is None.
    if separator == "\t":
        return to_records(path, enumerate(tab_records(lines, columns, header[0])))
    return to_records(path, enumerate(csv_records(lines, columns, separator, header[0])))


def to_records(
    path: str | os.PathLike, rows: Iterator[tuple[int, tuple[int, dict[str, str] | None]]]
) -> Iterator[tuple[int, Record | None]]:
    """Records, or None, for rows with the numbers of their lines."""
    for index, (number, values) in rows:
        yield index, None if values is None else Record(f"{called(path)}, line {number}", values)


def tab_records(
    lines: Iterator[tuple[int, str]], columns: Sequence[str], before: int
) -> Iterator[tuple[int, dict[str, str] | None]]:
    """(line number, values by column) of tab-separated rows; values are {} for a row with another number of columns,
    as an empty line is between rows of several, and None for a line that was refused before (as in `csv_records`).

    Args:
        lines: the rows' lines, with their numbers.
        columns: the names of the columns.
        before: the number of the line before the first row.
    """
    for number, _, found in quoted_rows(without_blank_end(lines), len(columns), before):
        fields = [unquoted(field.strip()) for field in found or ()]
        fits = len(fields) == len(columns)
        yield number, None if found is None else dict(zip(columns, fields, strict=True)) if fits else {}


def unquoted(field: str) -> str:
    """A tab-separated field without the quotes that a CSV writer put around it, if they are such: then it contains
    doubled quotes and no single one. Other quotes are kept, since a text may be one quotation."""
    inner = field[1:-1]
    if '""' not in inner or not field.startswith('"') or not field.endswith('"') or '"' in inner.replace('""', ""):
        return field
    return inner.replace('""', '"')
