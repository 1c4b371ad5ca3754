"""All parts of a data set in one table, told apart by its column ``split``, as sbert.net publishes STS-B and AllNLI."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any

from ..text_files import without_gz
from ..wording import listed
from .bad_rows import called

_log = logging.getLogger("fastbert")
SPLIT = "split"
_NAMES = frozenset(["train", "training", "dev", "development", "validation", "valid", "val", "test", "testing", "eval"])


class Parts:
    """The parts that occur in a file.

    Args:
        path: the file, for the message.
        tabs: whether tabs separate the columns of the file.
    """

    def __init__(self, path: str | os.PathLike, tabs: bool):
        self._path, self._tabs = path, tabs
        self._names: dict[str, None] = {}  # in the order of the file

    def add(self, value: Any) -> None:
        """Notes the value of a row. Others than the usual names are no parts, and there may be any number of them."""
        name = str(value).strip()
        if name.lower() in _NAMES:
            self._names[name] = None

    def say(self, columns: Sequence[str]) -> None:
        """Warns of several parts: a model that is trained on all of them has seen what it is tested on.

        Args:
            columns: those of the file.
        """
        if len(self._names) < 2:
            return
        names = list(self._names)
        kept = next((name for name in names if name.lower().startswith("train")), names[0])
        if self._tabs:
            opened = "zcat FILE | " if without_gz(self._path) != os.fspath(self._path) else ""
            place = columns.index(SPLIT) + 1
            way = f"""{opened}awk -F'\\t' 'NR == 1 || ${place} == "{kept}"'{"" if opened else " FILE"}"""
        else:
            way = f"pandas' frame[frame.{SPLIT} == {kept!r}]"
        _log.warning(
            "%s: the column %s has %s, and the rows of all are taken (%s keeps those of one)",
            called(self._path),
            SPLIT,
            listed(names),
            way,
        )
