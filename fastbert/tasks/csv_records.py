"""Rows of .csv with CSV quoting, where a quote that is never closed costs its row and no other."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence

MAX_LINES = 20
"""Lines that one row may take."""


def csv_fields(text: str) -> list[str]:
    """The fields of one row."""
    return next(csv.reader(io.StringIO(text, newline="")), [])


def csv_records(lines: Sequence[tuple[int, str]], header: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Line number and values by column of every row after the header; {} for one that has another number of columns or
    whose quotes never close.

    Args:
        lines: of the file with their numbers, the header's first.
    """
    at = 1
    while at < len(lines):
        number, text = lines[at]
        # A quoted field may go on over lines. One that is never closed must not swallow the rest of the file.
        end = next((e for e in range(at, min(at + MAX_LINES, len(lines))) if _closed(lines[at : e + 1])), at)
        text = "\n".join(line for _, line in lines[at : end + 1])
        at = end + 1
        if not text.strip():
            continue
        fields = csv_fields(text) if text.count('"') % 2 == 0 else []
        yield number, dict(zip(header, map(str.strip, fields), strict=True)) if len(fields) == len(header) else {}


def _closed(lines: Sequence[tuple[int, str]]) -> bool:
    return sum(line.count('"') for _, line in lines) % 2 == 0
