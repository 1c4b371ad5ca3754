"""How long a run has trained, across its resumes."""

from __future__ import annotations

import time


class RunClock:
    """Counts from `start`, in addition to the times given to `go_on`."""

    def __init__(self) -> None:
        self._before, self._processor_before = 0.0, 0.0
        self._began: tuple[float, float] | None = None

    def go_on(self, seconds: float, processor_seconds: float) -> None:
        """Sets the times before a resume, from a checkpoint."""
        self._before, self._processor_before = seconds, processor_seconds

    def start(self) -> None:
        """Starts counting."""
        self._began = time.monotonic(), time.process_time()

    @property
    def seconds(self) -> float:
        """Seconds of training so far."""
        return self._before + (0.0 if self._began is None else time.monotonic() - self._began[0])

    @property
    def processor_seconds(self) -> float:
        """Processor time of all threads of this process during ``seconds``."""
        return self._processor_before + (0.0 if self._began is None else time.process_time() - self._began[1])
