"""Rows that cannot be used: reading stops at the first with the reason, or skips them and records the reasons."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import TypeVar

from ..errors import DataError, InputError

T = TypeVar("T")


def called(path: str | os.PathLike) -> str:
    """The name of a file in messages: its path, or "standard input" for ``-``."""
    return "standard input" if os.fspath(path) == "-" else str(path)


class BadRows:
    """What to do with bad rows: readers pass every unusable row to `refuse`.

    Args:
        skip: record the reasons and continue; otherwise the first is raised.
        hint: what the user can do about it, added to the message that is raised.
        encoding: for lines that are not UTF-8, an encoding with one byte per character; None makes them bad rows.

    Attributes:
        reasons: one sentence per skipped row, with file, line and reason.
        decoded: how many lines, or whole files with one text each, were read in that encoding.

    Raises:
        InputError: the encoding is unknown, or has several bytes per character.
    """

    def __init__(self, skip: bool = False, hint: str = "", encoding: str | None = None):
        if encoding is not None:
            _check_encoding(encoding)
        self.skip, self.hint, self.encoding = skip, hint, encoding
        self.reasons: list[str] = []
        self.decoded = 0

    def decode(self, raw: bytes) -> str:
        """The text of a line. Raises UnicodeDecodeError if it is valid neither in UTF-8 nor in the other encoding."""
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            if self.encoding is None:
                raise
            text = raw.decode(self.encoding)
        self.decoded += 1
        return text

    def refuse(self, reason: str) -> None:
        """Records the reason why a row is skipped.

        Raises:
            DataError: bad rows are not to be skipped.
        """
        if not self.skip:
            raise DataError(f"{reason} ({self.hint})" if self.hint else reason)
        self.reasons.append(reason)

    def none_left(self, path: str | os.PathLike, what: str) -> DataError:
        """The error for a file without usable ``what`` ("rows", "questions"); its message says why the first is bad."""
        first = f"; the first is bad: {self.reasons[0]}" if self.reasons else ""
        return DataError(f"{called(path)}: expected {what}, got none that can be used{first}")


def _check_encoding(name: str) -> None:
    """Raises InputError for an encoding with several bytes per character: lines in one, such as short Chinese ones, are
    often valid UTF-8 by chance, and would be read as UTF-8."""
    try:
        single = len(bytes(range(128, 256)).decode(name, "replace")) == 128
    except (LookupError, ValueError):
        single = False
    if not single:
        raise InputError(
            "the fallback encoding must have one byte a character, as latin-1 and windows-1252 do, got "
            f"{name!r:.60}; iconv converts files in others"
        )


def numbered(rows: Iterable[T], bad_rows: BadRows, start: int = 0) -> Iterator[tuple[int, T]]:
    """Enumerates rows, counting also those that the reader refuses in between, so that a row's number does not depend
    on what is skipped.

    Args:
        rows: the rows, as they are read.
        bad_rows: has the reasons of refused ones.
        start: the number of the first, which is that of rows that were refused before.
    """
    number, told = start, len(bad_rows.reasons)
    for row in rows:
        number += len(bad_rows.reasons) - told
        yield number, row
        number, told = number + 1, len(bad_rows.reasons)


def at_least_one(rows: Iterable[T], path: str | os.PathLike, bad_rows: BadRows) -> Iterator[T]:
    """Yields the rows; raises DataError at the end if there was none."""
    none = True
    for row in rows:
        none = False
        yield row
    if none:
        raise bad_rows.none_left(path, "rows")


STRICT = BadRows()
"""The default of every reader. It records nothing, so all can share it."""
