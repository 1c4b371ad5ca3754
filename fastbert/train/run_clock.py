"""How long a run has trained, across its resumes."""

from __future__ import annotations

import time


class RunClock:
    """Counts from `start`, and from what `go_on` says that was before."""

    def __init__(self) -> None:
        self._before, self._processor_before = 0.0, 0.0
        self._began: tuple[float, float] | None = None

    def go_on(self, seconds: float, processor_seconds: float) -> None:
        """Adds what a checkpoint says."""
        self._before, self._processor_before = seconds, processor_seconds

    def start(self) -> None:
        """Begins to count."""
        self._began = time.monotonic(), time.process_time()

    @property
    def seconds(self) -> float:
        """Seconds of training."""
        return self._before + (0.0 if self._began is None else time.monotonic() - self._began[0])

    @property
    def processor_seconds(self) -> float:
        """Processor time of this process in them, of all threads."""
        return self._processor_before + (0.0 if self._began is None else time.process_time() - self._began[1])
