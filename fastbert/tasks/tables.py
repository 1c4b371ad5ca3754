"""Tab-separated files as published by GLUE and its sources: without quoting, with or without a header."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from ..errors import DataError
from .bad_rows import STRICT, BadRows, at_least_one, called
from .files import read_lines, shorten
from .tab_rows import plain_rows, quoted_rows


@dataclass(frozen=True)
class Line:
    """A row of a table.

    Args:
        number: the number of the line in the file, from 1.
        index: the number of the row among the file's rows, from 0, unusable ones included.
        fields: the fields in the table's columns, as in the file, not stripped.
    """

    number: int
    index: int
    fields: list[str]


@dataclass(frozen=True)
class Table:
    """A table that is read on demand.

    Args:
        columns: the columns that were asked for and exist.
        lines: the usable rows, as they are read.
        where: the file and line of the header, for messages.
        header: all columns of the file.
    """

    columns: tuple[str, ...]
    lines: Iterator[Line]
    where: str
    header: tuple[str, ...]

    def position(self, column: str) -> int | None:
        """The index of a column; None if there is none of that name."""
        return self.columns.index(column) if column in self.columns else None


def read_table(
    path: str | os.PathLike,
    needed: Sequence[str],
    optional: Sequence[str] = (),
    *,
    noted: Sequence[str] = (),
    bare: Sequence[Sequence[str]] = (),
    form: str = "a tab-separated file",
    hint: str = "",
    is_bare: Callable[[Sequence[str]], bool] = lambda fields: True,
    extra: bool = False,
    quoted: bool = False,
    bad_rows: BadRows = STRICT,
    lines: Iterator[tuple[int, str]] | None = None,
) -> Table:
    """Reads a tab-separated file. Quotes are plain characters, and only line feeds end a row, unless it is ``quoted``.

    Args:
        path: the file, or ``-`` for standard input.
        needed: columns that a header must have; it may have others, in any order.
        optional: columns to keep if they exist; others are dropped (MNLI's parse trees are most of its file).
        noted: the same for columns that messages do not name.
        bare: the columns of files without a header, if the task has such files, in forms of different width.
        form: the name of a file with a header, for messages.
        hint: what the user can do if the header has other columns, for messages.
        is_bare: whether a first line with as many fields as the first of ``bare`` is a row of that form.
        extra: whether rows in the first form of ``bare`` may have more columns, which are dropped.
        quoted: whether a CSV writer may have put quotes around texts with tabs or line ends (`tab_rows`).
        bad_rows: what to do with rows of too few or too many columns, empty lines between rows and lines that are not
            UTF-8.
        lines: the file's lines, from `read_lines` with the same bad_rows; None to read them here.

    Raises:
        DataError: a header is needed and missing, or has a needed column twice; from the table's lines, if there is no
            usable row; or by bad_rows.
    """
    lines = read_lines(path, bad_rows) if lines is None else lines
    path = called(path)
    first = next(lines, None)
    if first is None:
        if bad_rows.reasons:  # there are lines, all of them refused
            raise bad_rows.none_left(path, "rows")
        raise DataError(f"{path}: expected {_expected(needed, optional, bare, form)}, got an empty file")
    columns = tuple(name.strip() for name in first[1].split("\t"))
    pending = []
    if not set(needed) <= set(columns):
        first_bare = bare and _fits(columns, bare[0], extra) and is_bare(columns)
        found = bare[0] if first_bare else next((one for one in bare[1:] if _fits(columns, one, False)), None)
        if found is None:
            expected = _expected(needed, optional, bare, form)
            raise DataError(f"{path}, line {first[0]}: expected {expected}, got {shorten(first[1])!r}{hint}")
        columns, pending = tuple(found), [first]
    else:
        lines = rows_below(first, lines, columns, path, bad_rows)
    extra = extra and bool(pending) and columns == tuple(bare[0])
    kept = tuple(name for name in (*needed, *optional, *noted) if name in columns)
    check_once([name for name in kept if name in needed], columns, f"{path}, line {first[0]}")
    # Rows are counted from the line after the header, or from the first line if there is no header.
    last = 0 if pending else first[0]
    found = without_blank_end(itertools.chain(pending, lines))
    read = quoted_rows(found, len(columns), last) if quoted else plain_rows(found, last)
    rows = _rows(path, read, columns, kept, extra, bad_rows)
    return Table(kept, at_least_one(rows, path, bad_rows), f"{path}, line {first[0]}", columns)


def _rows(
    path: str,
    rows: Iterable[tuple[int, str, list[str] | None]],
    columns: Sequence[str],
    kept: Sequence[str],
    extra: bool,
    bad_rows: BadRows,
) -> Iterator[Line]:
    """The usable rows among those of `tab_rows`."""
    at = [columns.index(name) for name in kept]
    index, blank = 0, None
    for number, line, fields in rows:
        if fields is None:  # lines that were not UTF-8 were rows too
            index += 1
            continue
        if not line.strip() and "\t" not in line:  # tabs alone are a row of empty fields, as ",," is in a .csv
            blank = blank or number
            continue
        if blank is not None:
            bad_rows.refuse(f"{path}, line {blank}: expected {_counted(columns)}, got an empty line")
            blank = None
        if _fits(fields, columns, extra):
            yield Line(number, index, [fields[i] for i in at])
        else:
            bad_rows.refuse(
                f"{path}, line {number}: expected {_counted(columns, 'tab-separated ')} "
                f"({shorten(', '.join(columns), 120)}), got {len(fields)}: {shorten(line)!r}"
            )
        index += 1


def without_blank_end(lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """The lines without empty ones, and rows of empty fields, at the end, which are common and harmless; between rows
    something is missing."""
    blank = []
    for number, line in lines:
        blank.append((number, line))
        if line.strip():
            yield from blank
            blank.clear()


def rows_below(
    header: tuple[int, str],
    lines: Iterable[tuple[int, str]],
    columns: Sequence[str],
    path: str | os.PathLike,
    bad_rows: BadRows,
) -> Iterator[tuple[int, str]]:
    """The lines after a header. If the header occurs again, as in concatenated files, it is a bad row; unless it has
    only one column, since it might then be a text."""
    for number, line in lines:
        if len(columns) > 1 and line.removeprefix("\ufeff") == header[1]:
            bad_rows.refuse(
                f"{called(path)}, line {number}: expected a row, got the header of line {header[0]} again, as in files "
                "that were put together"
            )
            continue
        yield number, line


def check_once(names: Iterable[str], header: Sequence[str], where: str) -> None:
    """Raises DataError if a header has one of these columns twice, so that it is unclear which is meant."""
    twice = next((name for name in names if header.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"{where}: expected one column {twice!r}, got {header.count(twice)}")


def _fits(fields: Sequence[str], columns: Sequence[str], extra: bool) -> bool:
    return len(fields) == len(columns) or (extra and len(fields) > len(columns))


def _expected(needed: Sequence[str], optional: Sequence[str], bare: Sequence[Sequence[str]], form: str) -> str:
    header = f"the header of {form} with the column{'s' * (len(needed) > 1)} {', '.join(map(repr, needed))}"
    header += f" (optional: {', '.join(map(repr, optional))})" if optional else ""
    return ", or ".join([header, *(f"{_counted(columns)} without a header ({', '.join(columns)})" for columns in bare)])


def _counted(columns: Sequence[str], what: str = "") -> str:
    return f"{len(columns)} {what}column{'s' * (len(columns) > 1)}"
