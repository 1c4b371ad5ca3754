"""A watchdog of the training loop: if no step ends for some minutes, it writes the stacks of all threads to a file."""

from __future__ import annotations

import faulthandler
import logging
import os
import time
from pathlib import Path

_log = logging.getLogger("fastbert")


class StallWatch:
    """Writes ``run_dir/stall-RANK.txt`` if `alive` is not called for some minutes, and again each time as many pass.

    The timer is faulthandler's, a C thread that needs no GIL, so it also works while the process hangs in a collective
    or a kernel. A process has only one such timer, so only one watch can be active at a time.

    Args:
        run_dir: an existing directory.
        minutes: the longest time between calls; None disables the watch.
        rank: the rank of this process.
    """

    def __init__(self, run_dir: str | os.PathLike, minutes: float | None, rank: int = 0) -> None:
        self.path = Path(run_dir) / f"stall-{rank}.txt"
        self._seconds = None if minutes is None else 60.0 * minutes
        self._file = None
        self._armed_at = self._size = 0.0

    def __enter__(self) -> StallWatch:
        if self._seconds is not None:
            # Opened in advance: a process that hangs cannot open files.
            self._file = open(self.path, "a", encoding="utf-8")
            self._size = self._size_now()
            self._arm()
        return self

    def __exit__(self, *_exception) -> None:
        if self._file is None:
            return
        faulthandler.cancel_dump_traceback_later()
        is_empty = not self._size_now()
        self._file.close()
        if is_empty:
            self.path.unlink(missing_ok=True)

    def _size_now(self) -> int:
        # Of the open file: someone may have removed its name, empty as it is.
        return os.fstat(self._file.fileno()).st_size

    def _arm(self) -> None:
        faulthandler.dump_traceback_later(self._seconds, repeat=True, file=self._file)
        self._armed_at = time.monotonic()

    def alive(self) -> None:
        """Called after every step: restarts the timer."""
        if self._file is None:
            return
        passed = time.monotonic() - self._armed_at
        # Restarting the timer joins and starts a thread, too slow for every step of a few milliseconds.
        if passed < 0.05 * self._seconds:
            return
        size = self._size_now()
        if size > self._size:
            self._size = size
            _log.warning("no step ended for %.0f s; the stacks of all threads are in %s", passed, self.path)
        self._arm()
