"""Lines at the end of a file, which a full disk delays and does not lose."""

from __future__ import annotations

import errno
from pathlib import Path

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class Appender:
    """Appends text to a file at once. What finds no room waits for the next call: a log is no reason to end a run.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._waiting = path, b""

    def write(self, text: str = "") -> None:
        """Writes what waits and the text. Raises OSError for other reasons than a full disk."""
        self._waiting += text.encode()
        try:
            with open(self._path, "ab", buffering=0) as file:
                while self._waiting:
                    self._waiting = self._waiting[file.write(self._waiting) :]
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
