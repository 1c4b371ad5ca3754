"""SIGTERM, which batch systems send, for commands that keep unfinished files on the disk while they work."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator

TERMINATED = 128 + signal.SIGTERM
"""The exit status that a shell shows for a process that SIGTERM ended."""


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
