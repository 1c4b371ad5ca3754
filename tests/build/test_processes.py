"""Worker processes: what they answer, what of signals reaches them, and that none outlives its parent or is waited for
in vain."""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import subprocess
import sys
import threading
import time

import pretraining_runs
import pytest

from fastbert.processes import WorkerDied, Workers, obey_the_parent, quick_context

_base = 0


def begin(base: int) -> None:
    global _base
    _base = base


def answer(job: str):
    if job == "pid":
        return os.getpid()
    if job == "error":
        raise ValueError("no such job")
    if job == "half":  # of an answer, and no more
        pipe = sys._getframe(1).f_locals["pipe"]
        os.write(pipe.fileno(), struct.pack("!i", 1 << 20) + bytes(100))
        os.kill(os.getpid(), signal.SIGKILL)
    return _base + int(job)


def test_answers_and_errors_are_those_of_the_jobs():
    with Workers(2, answer, begin, (100,)) as workers:
        found = [workers.submit(str(job)) for job in range(20)]
        wrong = workers.submit("error")
        assert [future.result() for future in found] == list(range(100, 120))
        with pytest.raises(ValueError, match="no such job"):
            wrong.result()
        assert workers.submit("1").result() == 101  # it goes on after an error


@pytest.mark.timeout(60)
def test_one_that_is_killed_half_through_an_answer_is_not_waited_for():
    """By any of those that share no lock with it; a pool of `concurrent.futures` waited for ever."""
    with Workers(2, answer, begin, (0,)) as workers:
        killed = workers.submit("half")
        with pytest.raises(WorkerDied):
            killed.result()
        answers = [workers.submit("7") for _ in range(4)]
        died = [isinstance(future.exception(), WorkerDied) for future in answers]
        assert all(dead or future.result() == 7 for dead, future in zip(died, answers, strict=True))


@pytest.mark.skipif(not hasattr(signal, "sigtimedwait"), reason="the system does not tell who sent a signal")
@pytest.mark.usefixtures("hangups_arrive")
def test_signals_to_a_group_are_the_parents_affair():
    with Workers(1, answer, begin, (0,)) as workers:
        pid = workers.submit("pid").result()
        for name in ("INT", "HUP", "TERM"):
            subprocess.run(["kill", f"-{name}", str(pid)], check=True)
        time.sleep(0.2)  # a SIGTERM is looked at by a thread
        assert workers.submit("pid").result() == pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def _begin_without_threads(pipe) -> None:
    def start(_thread):
        raise RuntimeError("can't start new thread")

    threading.Thread.start = start
    with contextlib.suppress(RuntimeError):
        obey_the_parent()
    pipe.send("began")
    time.sleep(60)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the process would not have this module")
def test_one_that_may_start_no_thread_can_be_ended():
    """Under a limit of processes; Python waited for it without end."""
    here, there = quick_context().Pipe()
    process = quick_context().Process(target=_begin_without_threads, args=(there,))
    process.start()
    try:
        assert here.recv() == "began"
        process.terminate()
        process.join(10)
        assert process.exitcode == -signal.SIGTERM
    finally:
        process.kill()
        process.join()


PARENT = """
import time
from fastbert.processes import Workers

def begin():
    pass

def answer(job):
    import os
    return os.getpid()

if __name__ == "__main__":
    with Workers(3, answer, begin, ()) as workers:
        print(*(process.pid for process in workers._processes), workers.submit(0).result() > 0, flush=True)
        time.sleep(60)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc tells of the processes")
def test_none_outlives_a_parent_that_is_killed(tmp_path):
    (tmp_path / "parent.py").write_text(PARENT)
    command = [sys.executable, str(tmp_path / "parent.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=pretraining_runs.environment()) as parent:
        try:
            *pids, answered = parent.stdout.readline().split()
        finally:
            parent.kill()
    assert (len(pids), answered) == (3, "True")
    deadline = time.monotonic() + 60
    while any(_runs(pid) for pid in pids):
        assert time.monotonic() < deadline, "workers outlived their parent"
        time.sleep(0.05)


def _runs(pid: str) -> bool:
    """Whether a process is there and has not ended (one that is nobody's child any more may wait to be collected)."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
