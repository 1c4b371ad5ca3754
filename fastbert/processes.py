"""Worker processes: how they are started, which signals they obey, and how they end."""

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

from .errors import InputError
from .signals import held_signals


def quick_context():
    """The `multiprocessing` context of worker processes: "fork" on Linux, where it is safe and quick and scripts need
    no ``if __name__ == "__main__"``; "spawn" elsewhere.

    Newer Pythons default to "forkserver", with which a SIGTERM to all processes would end the server, and with it the
    workers.
    """
    return multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")


def may_start_others() -> bool:
    """Whether this process may start others by `multiprocessing`: daemonic ones, as of a pool or of Celery, may not."""
    return not multiprocessing.current_process().daemon


def check_may_start(count: int, least: int) -> None:
    """Raises InputError if this process would have to start others and may not.

    Args:
        count: the asked num_workers.
        least: the num_workers with which none is started.
    """
    if count > least and not may_start_others():
        raise InputError(
            f"num_workers must be {least} in a daemonic process (of a multiprocessing pool, for example), which may "
            f"start no others, got {count}"
        )


def obey_the_parent(*, terminable: bool = False) -> None:
    """Makes this process, which `multiprocessing` has started, ignore signals that do not come from its parent.

    Ctrl-C in a terminal, closing the terminal, and a batch system's SIGTERM reach every process of a group. A worker
    that died of one would spoil the parent's orderly end. So SIGINT and SIGHUP are ignored, and only the parent's
    SIGTERM is obeyed, which Python sends at exit before it waits for its children. If the parent dies, this process
    ends too.

    Args:
        terminable: whether a SIGTERM from any process ends this one, as by default.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    of_parent = not terminable and hasattr(signal, "sigtimedwait")  # macOS does not tell who sent a signal
    if of_parent:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    parent = multiprocessing.parent_process().pid
    try:
        threading.Thread(target=_end_with, args=(parent, of_parent), daemon=True).start()
    except RuntimeError:  # no more threads are allowed: the parent must still be able to end this process
        if of_parent:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        raise


def _end_with(parent: int, heeds_sigterm: bool) -> None:
    while os.getppid() == parent:
        if not heeds_sigterm:
            time.sleep(1.0)
        elif (caught := signal.sigtimedwait({signal.SIGTERM}, 1.0)) is not None and caught.si_pid == parent:
            break
    os._exit(0)


def killed_with_the_parent() -> None:
    """On Linux, lets the kernel kill this process when its parent ends for any reason. For a process that may be
    stopped (SIGSTOP), when none of its own threads can end it."""
    if sys.platform == "linux":
        set_parent_death_signal = 1  # linux/prctl.h
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)


class WorkerDied(Exception):
    """A worker was killed before it answered."""


class Workers:
    """A pool of processes that do one job at a time each. A context manager; the processes end with the block.

    Each process has its own pipe, and they share no lock, so a process that is killed at any moment, even halfway
    through an answer, is noticed at once. The pool of `concurrent.futures` has one pipe for all processes and would
    wait for ever for the rest of that answer.

    Args:
        count: the number of processes.
        do: called with each job, in a process. It must be picklable, as must the jobs and the results.
        begin, given: a function that each process calls first, and its arguments.
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
        there.close()  # the next process must not inherit it: an end of file must tell that this process has died
        self._processes.append(process)
        self._idle.put(here)

    def submit(self, job: Any) -> Future:
        """Queues a job. The future has its result or its exception, or WorkerDied if the process was killed."""
        return self._threads.submit(self._ask, job)

    def _ask(self, job: Any) -> Any:
        pipe = self._idle.get()  # there are as many pipes as threads
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
        for process in self._processes:  # killing them loses nothing: they keep no state
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
            except Exception as error:  # the parent raises it
                answer = (False, error)
            pipe.send(answer)
