"""What becomes of a row that cannot be used: the reading stops with its reason, or goes on and counts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import TypeVar

from ..errors import DataError, InputError

T = TypeVar("T")


def called(path: str | os.PathLike) -> str:
    """What messages call a file: its path, but for ``-``."""
    return "standard input" if os.fspath(path) == "-" else str(path)


class BadRows:
    """Readers hand every unusable row to `refuse`.

    Args:
        skip: keep the reasons and go on, where the first would otherwise be raised.
        hint: what a person can do about it, added to a raised reason.
        encoding: of one byte a character, for lines that are not UTF-8; without it they are bad rows.

    Attributes:
        reasons: one sentence a skipped row, with file, line and reason.
        decoded: how many lines, or texts of files of their own, were read in that encoding.

    Raises:
        InputError: no such encoding, or one of several bytes a character.
    """

    def __init__(self, skip: bool = False, hint: str = "", encoding: str | None = None):
        if encoding is not None:
            _check_encoding(encoding)
        self.skip, self.hint, self.encoding = skip, hint, encoding
        self.reasons: list[str] = []
        self.decoded = 0

    def decode(self, raw: bytes) -> str:
        """The text of a line; raises UnicodeDecodeError where it is none in UTF-8 and none in the other encoding."""
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            if self.encoding is None:
                raise
            text = raw.decode(self.encoding)
        self.decoded += 1
        return text

    def refuse(self, reason: str) -> None:
        """Takes note of a row that is left out.

        Raises:
            DataError: rows are not to be skipped.
        """
        if not self.skip:
            raise DataError(f"{reason} ({self.hint})" if self.hint else reason)
        self.reasons.append(reason)

    def none_left(self, path: str | os.PathLike, what: str) -> DataError:
        """The error of a file whose ``what`` (rows, questions) are all bad: it says why the first one is."""
        first = f"; the first is bad: {self.reasons[0]}" if self.reasons else ""
        return DataError(f"{called(path)}: expected {what}, got none that can be used{first}")


def _check_encoding(name: str) -> None:
    """A line of bytes that come in pairs may be UTF-8 by chance, and would be read as that: Chinese words alone do."""
    try:
        single = len(bytes(range(128, 256)).decode(name, "replace")) == 128
    except (LookupError, ValueError):
        single = False
    if not single:
        raise InputError(
            "the fallback encoding must have one byte a character, as latin-1 and windows-1252 do, got "
            f"{name!r:.60}; iconv converts files in others"
        )


def numbered(rows: Iterable[T], bad_rows: BadRows) -> Iterator[tuple[int, T]]:
    """Rows with their numbers from 0. Those that their reader refuses in between count too, so that the numbers of the
    others do not depend on what is skipped."""
    number, told = 0, len(bad_rows.reasons)
    for row in rows:
        number += len(bad_rows.reasons) - told
        yield number, row
        number, told = number + 1, len(bad_rows.reasons)


def some(rows: Iterable[T], path: str | os.PathLike, bad_rows: BadRows) -> Iterator[T]:
    """Rows as they come; raises DataError at the end of those of a file that has none."""
    none = True
    for row in rows:
        none = False
        yield row
    if none:
        raise bad_rows.none_left(path, "rows")


STRICT = BadRows()
"""The default of every reader: it keeps nothing, so that all may share it."""
