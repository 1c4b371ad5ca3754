"""Ctrl-C and SIGTERM, which batch systems send, end work in good order."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator

TERMINATED = 128 + signal.SIGTERM
"""The exit status that a shell shows for a process that SIGTERM ended."""


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


@contextlib.contextmanager
def removed_on_sigterm() -> Iterator[None]:
    """While the block runs SIGTERM ends it by an exception, so that what is unfinished is removed; by itself it would
    end the process on the spot. The second SIGTERM does that.

    Outside the main thread, where Python delivers no signals, and where they are ignored nothing changes.
    """
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def end(number: int, _frame) -> None:
        signal.signal(number, signal.SIG_DFL)
        sys.exit(TERMINATED)

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
