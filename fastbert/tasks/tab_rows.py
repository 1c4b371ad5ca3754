"""Rows of tab-separated files, of which some are quoted: a CSV writer puts quotes around a text with a tab or a line
end in it, also where tabs separate the columns (pandas' ``to_csv(sep="\\t")``)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from .csv_records import MAX_LINES, Ahead, next_row


def plain_rows(lines: Iterable[tuple[int, str]], before: int) -> Iterator[tuple[int, str, list[str] | None]]:
    """(line number, line, fields) of every line. Fields are None for a line whose number is missing in ``lines``
    because it was refused before, since it was a row too.

    Args:
        lines: the lines with their numbers.
        before: the number of the line before the first.
    """
    for number, line in lines:
        yield from ((lost, "", None) for lost in range(before + 1, number))
        before = number
        yield number, line, line.split("\t")


def quoted_rows(
    lines: Iterable[tuple[int, str]], width: int, before: int
) -> Iterator[tuple[int, str, list[str] | None]]:
    """`plain_rows`, but for quoted rows of ``width`` columns, whose fields come without the quotes; number and line are
    those of the first line. Fields are None for a quoted row of which a line is missing."""
    ahead = Ahead(lines)
    while (first := ahead.peek(0)) is not None:
        number, line = first
        yield from ((lost, "", None) for lost in range(before + 1, number))
        fields, taken = line.split("\t"), 1
        if width > 1 and any(map(_opens, fields)):
            found, lines_of_it = next_row(_until_two_rows(ahead, width), "\t")
            if len(found) == width and (lines_of_it > 1 or len(fields) != width):
                fields, taken = found, lines_of_it
        before = ahead.take(taken)
        yield number, line, None if before - number >= taken else fields


def _opens(field: str) -> bool:
    """Whether a field begins with a quote that is not closed in it."""
    return field.lstrip().startswith('"') and field.count('"') % 2 == 1


def _until_two_rows(ahead: Ahead, width: int) -> Iterator[str]:
    """The next lines, but not more than one that has all columns by itself, as the first or the last line of a quoted
    row may have: quotes may also be part of a text, and other rows must not become part of it."""
    rows = 0
    for place in range(MAX_LINES):
        line = ahead.peek(place)
        rows += line is not None and line[1].count("\t") == width - 1
        if line is None or rows > 1:
            return
        yield line[1]
