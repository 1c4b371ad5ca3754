"""Ctrl-C and SIGTERM end a run in good order."""

from __future__ import annotations

import signal
import threading


class StopRequest:
    """While the block runs, the first SIGINT or SIGTERM only sets ``asked``; the second acts as it always does.

    Outside the main thread, where Python delivers no signals, it never asks.
    """

    def __init__(self) -> None:
        self.asked: str | None = None
        self._previous: dict[int, object] = {}

    def _note(self, number: int, _frame) -> None:
        self.asked = signal.Signals(number).name
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_exception) -> None:
        self._restore()
