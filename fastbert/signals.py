"""Ctrl-C, SIGTERM, which batch systems send, and SIGHUP, which a terminal sends that closes, end work in good order."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Iterator

# Of one request to stop, several signals may come: a batch system and a terminal tell the launcher and the processes
# that it started, and the launcher tells these again. A person's second Ctrl-C is later.
ONE_REQUEST_S = 1.0


class StopRequest:
    """While the block runs, the first SIGINT, SIGTERM or SIGHUP only sets ``asked``, and those that come soon after it
    do nothing. A later one acts as it always does, but for a SIGHUP: the shell and the system each send one when a
    terminal closes.

    Where SIGHUP was ignored from the start (nohup) it stays so. Outside the main thread, where Python delivers no
    signals, it never asks.

    Args:
        one_request: for how many seconds signals belong to the first.
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

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                    self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_exception) -> None:
        self._restore()


@contextlib.contextmanager
def removed_on_sigterm() -> Iterator[None]:
    """While the block runs SIGTERM or SIGHUP ends it by an exception, so that what is unfinished is removed; by itself
    it would end the process on the spot. A second SIGTERM does that.

    Python passes an exception over that is raised while an object is removed, in `__del__` or in the callback of a weak
    reference, of which torch has many. That of a signal, Ctrl-C too, is raised again soon after.

    Outside the main thread, where Python delivers no signals, and where they are ignored nothing changes.
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
    """What `removed_on_sigterm` does with the main thread's signals, which are those that would end the process."""

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
        self._raised = SystemExit(128 + number)  # what a shell shows for a process that the signal ended
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
        while _main_runs(self._passed_over.__code__):  # what is raised there is passed over too
            time.sleep(0.001)
        os.kill(os.getpid(), number)


def _main_runs(code) -> bool:
    """Whether the main thread is in a function of this code, or in what that has called."""
    frame = sys._current_frames().get(threading.main_thread().ident)
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame is not None


@contextlib.contextmanager
def held_signals() -> Iterator[None]:
    """The first SIGINT, SIGTERM or SIGHUP that comes while the block runs acts at its end. For what must not stop half
    done, such as the start of a pool's processes: those of half a pool are told by nobody that they are to end.

    Outside the main thread, where Python delivers no signals, nothing changes.
    """
    stop = StopRequest(one_request=0.0)  # a process that is started here must end when it is told to
    try:
        with stop:
            yield
    finally:
        if stop.asked:
            signal.raise_signal(signal.Signals[stop.asked])


def _leave_lost_terminal() -> None:
    """What is written to a terminal that has been closed goes nowhere from now on: each write would be an error, and
    the first one would end what is to be saved."""
    for number in (1, 2):
        with contextlib.suppress(OSError):
            if stat.S_ISCHR(os.fstat(number).st_mode) and not os.isatty(number):
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, number)
                os.close(null)
