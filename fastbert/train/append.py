"""Appending to a log file: on a full disk, lines wait in memory until there is room."""

from __future__ import annotations

import logging
from pathlib import Path

from ..files import NO_ROOM

_log = logging.getLogger("fastbert")


class Appender:
    """Appends text to a file, unbuffered. On a full disk it warns once and keeps the text for the next call: a log is
    no reason to end a run.

    Args:
        path: the file, created if it does not exist.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._waiting, self._told = path, b"", False

    def write(self, text: str = "") -> None:
        """Writes the text after what is still waiting. Raises OSError, but not for a full disk."""
        self._waiting += text.encode()
        try:
            with open(self._path, "ab", buffering=0) as file:
                while self._waiting:
                    self._waiting = self._waiting[file.write(self._waiting) :]
            self._told = False
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            if not self._told:
                _log.warning("%s gets no more lines until there is room: %s", self._path, error.strerror)
            self._told = True
