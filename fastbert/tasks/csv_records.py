"""Rows of .csv with CSV quoting, where a quote that is never closed costs its row and no other."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterable, Iterator, Sequence

MAX_LINES = 1000
"""Lines that one row may take: a quote that is never closed must not swallow the rest of a file."""
MAX_FIELD = 1 << 28
"""Characters that a field may have."""


def csv_fields(text: str) -> list[str]:
    """The fields of a row of one line; none where they cannot be told apart."""
    return _next_row([text])[0]


def csv_records(
    lines: Iterable[tuple[int, str]], header: Sequence[str] | None
) -> Iterator[tuple[int, dict[str, str] | None]]:
    """Line number and values by column of every row after the header; {} for one that has another number of columns, or
    whose quotes never close, which costs its first line alone; None for a line whose number is missing among ``lines``,
    because it was refused before: it was a row too.

    Of a header of one column a line without a quote at its beginning is the text as it stands, commas too: people write
    such files by hand. So is one whose quotes break CSV's rules.

    Args:
        lines: of the file with their numbers, the header's first; at most `MAX_LINES` are held.
        header: the names of the columns; None to call them 1, 2, ..., as many as the first row has.
    """
    ahead = _Ahead(lines)
    before = ahead.take(1)
    while (line := ahead.peek(0)) is not None:
        number, text = line
        yield from ((lost, None) for lost in range(before + 1, number))
        if not text.strip():
            before = ahead.take(1)
            continue
        # Quotes within a field that has none around it are plain characters, so that only a reader that goes through
        # the fields can say where a row ends.
        following = itertools.takewhile(lambda one: one is not None, map(ahead.peek, range(1, MAX_LINES)))
        lone = header is not None and len(header) == 1
        read_row = _lone_row if lone else _next_row
        fields, taken = read_row(itertools.chain([text], (one for _, one in following)))
        if not fields:
            fields, taken = [text] if lone else _loose_row(text), 1
        if header is None and fields:
            header = [str(number) for number in range(1, len(fields) + 1)]
        before = ahead.take(taken)
        fits = header is not None and len(fields) == len(header)
        yield number, dict(zip(header, map(str.strip, fields), strict=True)) if fits else {}


class _Ahead:
    """Lines that can be looked at before they are taken."""

    def __init__(self, lines: Iterable[tuple[int, str]]):
        self._rest, self._held, self._at = iter(lines), [], 0

    def peek(self, place: int) -> tuple[int, str] | None:
        """The line at this place of those that are not taken, with its number; None where there are no more."""
        while len(self._held) <= self._at + place:
            line = next(self._rest, None)
            if line is None:
                return None
            self._held.append(line)
        return self._held[self._at + place]

    def take(self, count: int) -> int:
        """Takes lines; returns the number of the last one."""
        last, _ = self.peek(count - 1)
        self._at += count
        if 2 * self._at >= len(self._held):  # so that what is left moves less often than it is read
            del self._held[: self._at]
            self._at = 0
        return last


def _next_row(lines: Iterable[str]) -> tuple[list[str], int]:
    """The fields of the row that begins with these lines, and how many it takes; none where they break CSV's rules."""
    reader = csv.reader((line + "\n" for line in lines), strict=True)
    return _next(reader), reader.line_num


def _lone_row(lines: Iterator[str]) -> tuple[list[str], int]:
    """The same as `_next_row` of a file of one column. Blanks around the quotes are none of the text's."""
    text = next(lines)
    if not text.lstrip().startswith('"'):
        return [text], 1
    fields, taken = _next_row([text.strip()])
    return (fields, taken) if fields else _next_row(itertools.chain([text.lstrip()], lines))


def _loose_row(text: str) -> list[str]:
    """The fields of a line whose writer did not double the quotes within a quoted field, if they come in pairs."""
    return _next(csv.reader([text])) if text.count('"') % 2 == 0 else []


def _next(reader: Iterator[list[str]]) -> list[str]:
    limit = csv.field_size_limit(MAX_FIELD)
    try:
        return next(reader, [])
    except csv.Error:
        return []
    finally:
        csv.field_size_limit(limit)
