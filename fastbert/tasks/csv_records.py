"""Rows of .csv files with CSV quoting, in which an unclosed quote only makes its own row unusable."""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence

MAX_LINES = 1000
"""The most lines of one row, so that an unclosed quote does not swallow the rest of the file."""
MAX_FIELD = 1 << 28
"""The most characters of a field."""

_ESCAPED = re.compile(r'(?<!\\)((?:\\\\)*)\\"')
"""A quote after a backslash that no other backslash escapes."""


def csv_fields(text: str, separator: str) -> list[str]:
    """The fields of a row on one line; empty if it breaks CSV's rules."""
    return next_row([text], separator)[0]


def csv_records(
    lines: Iterable[tuple[int, str]], header: Sequence[str] | None, separator: str = ",", before: int = 0
) -> Iterator[tuple[int, dict[str, str] | None]]:
    """(line number, values by column) of every row. Values are {} for a row with another number of columns, or with an
    unclosed quote, of which only the first line is then skipped. They are None for a line whose number is missing in
    ``lines`` because it was refused before, since it was a row too; and for a row of several lines of which one is
    missing. Rows of nothing but empty fields at the end, which spreadsheets write, are left out.

    If the header has one column, a line that does not begin with a quote is taken literally, commas included, since
    people write such files by hand; so is one whose quotes break CSV's rules.

    Args:
        lines: the lines of the rows with their numbers; at most `MAX_LINES` of them are in memory.
        header: the names of the columns; None to call them 1, 2, ..., as many as the first row has.
        separator: what separates the columns.
        before: the number of the line before the first row, which is that of the header if there is one.
    """
    empty = []
    for number, values in _records(lines, header, separator, before):
        empty.append((number, values))
        if not values or len(values) == 1 or any(values.values()):
            yield from empty
            empty.clear()


def _records(
    lines: Iterable[tuple[int, str]], header: Sequence[str] | None, separator: str, before: int
) -> Iterator[tuple[int, dict[str, str] | None]]:
    """`csv_records`, with rows of empty fields at the end."""
    ahead = Ahead(lines)
    while (line := ahead.peek(0)) is not None:
        number, text = line
        yield from ((lost, None) for lost in range(before + 1, number))
        if not text.strip():
            before = ahead.take(1)
            continue
        # Quotes inside of an unquoted field are plain characters, so only parsing the fields tells where a row ends.
        following = itertools.takewhile(lambda one: one is not None, map(ahead.peek, range(1, MAX_LINES)))
        lone = header is not None and len(header) == 1
        rows = itertools.chain([text], (one for _, one in following))
        fields, taken = _lone_row(rows) if lone else next_row(rows, separator)
        if not fields:
            fields, taken = [text] if lone else _loose_row(text, separator), 1
        if header is None and fields:
            header = [str(number) for number in range(1, len(fields) + 1)]
        before = ahead.take(taken)
        if before - number >= taken:
            yield number, None
            continue
        fits = header is not None and len(fields) == len(header)
        yield number, dict(zip(header, map(str.strip, fields), strict=True)) if fits else {}


class Ahead:
    """A buffer of lines that can be looked at before they are consumed."""

    def __init__(self, lines: Iterable[tuple[int, str]]):
        self._rest, self._held, self._at = iter(lines), [], 0

    def peek(self, place: int) -> tuple[int, str] | None:
        """The line ``place`` lines ahead, with its number; None after the last."""
        while len(self._held) <= self._at + place:
            line = next(self._rest, None)
            if line is None:
                return None
            self._held.append(line)
        return self._held[self._at + place]

    def take(self, count: int) -> int:
        """Consumes lines; returns the number of the last one."""
        last, _ = self.peek(count - 1)
        self._at += count
        if 2 * self._at >= len(self._held):  # deletes half at a time, which keeps the cost per line constant
            del self._held[: self._at]
            self._at = 0
        return last


def next_row(lines: Iterable[str], separator: str = ",") -> tuple[list[str], int]:
    """The fields of the first row in these lines, and the number of its lines; empty if it breaks CSV's rules."""
    reader = csv.reader((line + "\n" for line in lines), strict=True, delimiter=separator)
    return _next(reader), reader.line_num


def _lone_row(lines: Iterator[str]) -> tuple[list[str], int]:
    """`next_row` for a file with one column. Blanks around the quotes are dropped."""
    text = next(lines)
    if not text.lstrip().startswith('"'):
        return [text], 1
    fields, taken = next_row([text.strip()])
    return (fields, taken) if fields else next_row(itertools.chain([text.lstrip()], lines))


def _loose_row(text: str, separator: str) -> list[str]:
    """The fields of a line in which quotes inside of a quoted field are not doubled: by backslashes before them, which
    Spark and MySQL write, or if their number is even."""
    fields = next_row([_ESCAPED.sub(r'\1""', text)], separator)[0]
    return fields or (_next(csv.reader([text], delimiter=separator)) if text.count('"') % 2 == 0 else [])


def _next(reader: Iterator[list[str]]) -> list[str]:
    limit = csv.field_size_limit(MAX_FIELD)
    try:
        return next(reader, [])
    except csv.Error:
        return []
    finally:
        csv.field_size_limit(limit)
