"""A watch on the training loop: where no step ends for some minutes, the stacks of all threads go into a file."""

from __future__ import annotations

import faulthandler
import logging
import os
import time
from pathlib import Path

_log = logging.getLogger("fastbert")


class StallWatch:
    """Writes ``run_dir/stall-RANK.txt`` when nobody has called `alive` for so long, and again after as long.

    The timer is faulthandler's, a thread without Python: it sees a process that waits in a collective or in a kernel
    while it holds the interpreter. A process has one such timer, so one watch at a time works.

    Args:
        run_dir: an existing directory.
        minutes: how long a step may take; None watches nothing.
        rank: of this process.
    """

    def __init__(self, run_dir: str | os.PathLike, minutes: float | None, rank: int = 0) -> None:
        self.path = Path(run_dir) / f"stall-{rank}.txt"
        self._seconds = None if minutes is None else 60.0 * minutes
        self._file = None
        self._armed_at = self._size = 0.0

    def __enter__(self) -> StallWatch:
        if self._seconds is not None:
            # Opened now: a process that stands still, or a machine without memory, opens nothing.
            self._file = open(self.path, "a", encoding="utf-8")
            self._size = self.path.stat().st_size
            self._arm()
        return self

    def __exit__(self, *_exception) -> None:
        if self._file is None:
            return
        faulthandler.cancel_dump_traceback_later()
        self._file.close()
        if not self.path.stat().st_size:
            self.path.unlink()

    def _arm(self) -> None:
        faulthandler.dump_traceback_later(self._seconds, repeat=True, file=self._file)
        self._armed_at = time.monotonic()

    def alive(self) -> None:
        """A step has ended."""
        if self._file is None:
            return
        passed = time.monotonic() - self._armed_at
        # The timer is a thread that is joined and started anew: not for every step of a few milliseconds.
        if passed < 0.05 * self._seconds:
            return
        size = self.path.stat().st_size
        if size > self._size:
            self._size = size
            _log.warning("no step ended for %.0f s; the stacks of all threads are in %s", passed, self.path)
        self._arm()
