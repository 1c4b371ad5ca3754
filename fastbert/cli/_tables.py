"""Prints tables on stdout."""

from __future__ import annotations

from collections.abc import Sequence


def print_table(table: Sequence[Sequence]) -> None:
    """Prints a header and lines in indented columns; numbers are right-aligned, floats have four decimals."""
    from ..tasks.results import show_cell

    cells = [[show_cell(value) for value in line] for line in table]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    left = [not all(_is_number(line[i]) for line in cells[1:]) for i in range(len(widths))]
    for line in cells:
        words = (
            word.ljust(width) if to_left else word.rjust(width)
            for word, width, to_left in zip(line, widths, left, strict=True)
        )
        print(("  " + "  ".join(words)).rstrip())


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return word == "-"
    return True
