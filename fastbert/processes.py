"""Processes that fastbert starts beside its own: how they start, which signals reach them, and how they end."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from .signals import held_signals


def quick_context():
    """Fork where it is safe and quick; there a script needs no ``if __name__ == "__main__"`` around what starts them.

    Not the default of every Python: under "forkserver" a SIGTERM to all processes would end the server, and with it the
    workers.
    """
    return multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")


def obey_the_parent(*, terminable: bool = False) -> None:
    """Makes this process, which `multiprocessing` has started, one that only its parent ends.

    Ctrl-C in a terminal, its end and a batch job's SIGTERM reach every process of a group; a worker that died of one
    would take with it what the parent is about to end in order. So SIGINT and SIGHUP are ignored, and of SIGTERMs the
    parent's is heeded: Python sends one at exit, and waits. A parent that has died ends this process too.

    Args:
        terminable: whether anybody's SIGTERM acts as it does by default.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    of_parent = not terminable and hasattr(signal, "sigtimedwait")  # macOS does not tell who sent a signal
    if of_parent:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    parent = multiprocessing.parent_process().pid
    threading.Thread(target=_end_with, args=(parent, of_parent), daemon=True).start()


def _end_with(parent: int, heeds_sigterm: bool) -> None:
    while os.getppid() == parent:
        if not heeds_sigterm:
            time.sleep(1.0)
        elif (caught := signal.sigtimedwait({signal.SIGTERM}, 1.0)) is not None and caught.si_pid == parent:
            break
    os._exit(0)


def killed_with_the_parent() -> None:
    """On Linux: this process is killed when its parent ends, whatever ends it. For one that may be stopped (SIGSTOP),
    which no thread of its own can end."""
    if sys.platform == "linux":
        set_parent_death_signal = 1  # linux/prctl.h
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)


class WorkerDied(Exception):
    """A worker was killed before it had answered."""


class Workers:
    """Processes that do one job at a time; to be entered, and at the end of the block they are no more.

    Each has a pipe of its own, and they share no lock: one that is killed at any moment, also half through an answer,
    is noticed at once. The pool of `concurrent.futures` has one pipe for all, and waits for ever for the other half.

    Args:
        count: how many processes.
        do: called with each job in a process; like all that is handed over, it can be pickled.
        begin, given: called first of all in each process, with these arguments.
    """

    def __init__(self, count: int, do: Callable[[Any], Any], begin: Callable[..., None], given: tuple) -> None:
        self._count, self._work = count, (do, begin, given)
        self._processes: list[multiprocessing.process.BaseProcess] = []
        self._idle: queue.SimpleQueue = queue.SimpleQueue()
        self._threads = ThreadPoolExecutor(count)

    def __enter__(self) -> Workers:
        try:
            with held_signals():
                for _ in range(self._count):
                    self._start()
        except BaseException:
            self._end()
            raise
        return self

    def _start(self) -> None:
        context = quick_context()
        here, there = context.Pipe()
        process = context.Process(target=_serve, args=(there, *self._work), daemon=True)
        process.start()
        there.close()  # the next process must not inherit it: that this one has died is told by its end
        self._processes.append(process)
        self._idle.put(here)

    def submit(self, job: Any) -> Future:
        """What a process will have answered, or raised; WorkerDied where it was killed."""
        return self._threads.submit(self._ask, job)

    def _ask(self, job: Any) -> Any:
        pipe = self._idle.get()  # there are as many as threads
        try:
            pipe.send(job)
            done, answer = pipe.recv()
        except (EOFError, OSError):
            raise WorkerDied from None
        finally:
            self._idle.put(pipe)
        if not done:
            raise answer
        return answer

    def _end(self) -> None:
        for process in self._processes:  # nothing is in them that would be lost
            process.kill()
            process.join()
        self._threads.shutdown(wait=True, cancel_futures=True)
        with contextlib.suppress(queue.Empty):
            while True:
                self._idle.get_nowait().close()

    def __exit__(self, *_exception) -> None:
        self._end()


def _serve(pipe, do: Callable[[Any], Any], begin: Callable[..., None], given: tuple) -> None:
    obey_the_parent()
    begin(*given)
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            job = pipe.recv()
            try:
                answer = (True, do(job))
            except Exception as error:  # the parent's to raise
                answer = (False, error)
            pipe.send(answer)
