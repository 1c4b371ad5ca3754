"""Orderly ends of work on Ctrl-C (SIGINT), SIGTERM from a batch system, and SIGHUP when a terminal is closed."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Iterator

# In seconds. One request to stop may arrive as several signals: a batch system or a terminal signals the launcher and
# the processes that it started, and the launcher signals these again. A person's second Ctrl-C comes later.
ONE_REQUEST_S = 1.0


class StopRequest:
    """A context manager that turns a signal into a flag: in the block, the first SIGINT, SIGTERM or SIGHUP only sets
    ``asked``, to the signal's name. Signals that come soon after it are ignored; a later one acts as it did before the
    block, except a SIGHUP: the shell and the system each send one when a terminal is closed.

    If SIGHUP was ignored from the start (nohup), it stays ignored. Outside the main thread, where Python delivers no
    signals, ``asked`` stays None.

    Args:
        one_request: for how many seconds after the first signal others are ignored.
    """

    def __init__(self, one_request: float = ONE_REQUEST_S) -> None:
        self._one_request = one_request
        self.asked: str | None = None
        self._asked_at = 0.0
        self._previous: dict[int, object] = {}

    def _note(self, number: int, _frame) -> None:
        if number == signal.SIGHUP:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            _leave_lost_terminal()
        if self.asked is None:
            self.asked, self._asked_at = signal.Signals(number).name, time.monotonic()
        elif number != signal.SIGHUP and time.monotonic() - self._asked_at > self._one_request:
            signal.signal(number, self._previous.pop(number))
            signal.raise_signal(number)

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                    self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_exception) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}


@contextlib.contextmanager
def removed_on_sigterm() -> Iterator[None]:
    """Makes SIGTERM and SIGHUP raise SystemExit in the block, so that unfinished files are removed; by default they end
    the process at once, and a second SIGTERM still does.

    Python ignores exceptions raised in `__del__` or in the callback of a weak reference, of which torch has many. If
    that happens to a signal's exception, Ctrl-C's included, the signal is sent again soon after.

    Nothing changes outside the main thread, where Python delivers no signals, and for signals that are ignored or have
    another handler.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ending = _Ending()
    ending.begin()
    try:
        yield
    finally:
        ending.end()


class _Ending:
    """The handlers of `removed_on_sigterm`, for the signals that would end the process by default."""

    def __init__(self) -> None:
        self._numbers = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is signal.SIG_DFL]
        self._raised: SystemExit | None = None
        self._previous_hook = sys.unraisablehook

    def begin(self) -> None:
        self._handle(self._raise)
        sys.unraisablehook = self._passed_over

    def end(self) -> None:
        sys.unraisablehook = self._previous_hook
        self._handle(signal.SIG_DFL)

    def _handle(self, handler) -> None:
        for number in self._numbers:
            signal.signal(number, handler)

    def _raise(self, number: int, _frame) -> None:
        self._handle(signal.SIG_DFL)
        if number == signal.SIGHUP:  # see StopRequest
            signal.signal(number, signal.SIG_IGN)
            _leave_lost_terminal()
        self._raised = SystemExit(128 + number)  # the status that a shell shows for a process ended by this signal
        raise self._raised

    def _passed_over(self, unraisable) -> None:
        error = unraisable.exc_value
        if isinstance(error, KeyboardInterrupt):
            number = signal.SIGINT
        elif error is not None and error is self._raised:
            number = error.code - 128
            self._handle(self._raise)
        else:
            self._previous_hook(unraisable)
            return
        threading.Thread(target=self._send_again, args=(number,), daemon=True).start()

    def _send_again(self, number: int) -> None:
        while _main_runs(self._passed_over.__code__):  # exceptions raised there are ignored too
            time.sleep(0.001)
        os.kill(os.getpid(), number)


def _main_runs(code) -> bool:
    """Whether the main thread is in the function with this code, or in a function called from it."""
    frame = sys._current_frames().get(threading.main_thread().ident)
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame is not None


@contextlib.contextmanager
def held_signals() -> Iterator[None]:
    """Delays the first SIGINT, SIGTERM or SIGHUP until the end of the block. For work that must not be interrupted
    halfway, such as starting a pool's processes, which nobody would end if the pool were incomplete.

    Outside the main thread, where Python delivers no signals, nothing changes.
    """
    stop = StopRequest(one_request=0.0)  # a process that is started in the block must obey every later signal
    try:
        with stop:
            yield
    finally:
        if stop.asked:
            signal.raise_signal(signal.Signals[stop.asked])


def _leave_lost_terminal() -> None:
    """Redirects standard output and standard error to /dev/null if their terminal is closed: a write would be an error,
    which would interrupt the saving of results."""
    for number in (1, 2):
        with contextlib.suppress(OSError):
            if stat.S_ISCHR(os.fstat(number).st_mode) and not os.isatty(number):
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, number)
                os.close(null)
