"""Death in the middle of a save: what was saved before is never lost, and nothing cut short looks like damage."""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
import traceback
from pathlib import Path

import pytest
import torch

from fastbert.train import checkpoint


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def fork(work) -> int:
    """Runs ``work`` in a copy of this process, which has torch loaded already; returns its id."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return child


@pytest.mark.parametrize("mode", ["next", "same"])
def test_killed_while_saving(tmp_path, mode):
    """kill -9 at random moments of a process that does nothing but save: what it reported saved is never lost."""
    pick = random.Random(mode)
    first = 1
    for _ in range(20):
        read, write = os.pipe()

        def save_for_ever(first=first, write=write) -> None:
            for n in itertools.count(first):
                step = 1 if mode == "same" else n
                checkpoint.save(tmp_path, step, {"w": torch.full((200_000,), float(n))}, {"n": n}, keep=2)
                os.write(write, f"{n}\n".encode())

        child = fork(save_for_ever)
        os.close(write)
        with open(read) as pipe:
            reported = [int(pipe.readline())]  # however slow the disk, a kill comes in the middle of saving
            time.sleep(0.05 * pick.random())
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            reported += [int(line) for line in pipe]
        path, skipped = checkpoint.latest_valid(tmp_path)
        assert not skipped, "a save or a removal cut short looks like damage"
        assert path is not None
        tensors, state, _ = checkpoint.load(path)
        assert state["n"] >= max(reported)
        assert torch.equal(tensors["w"], torch.full((200_000,), float(state["n"])))
        first = state["n"] + 1
    checkpoint.save(tmp_path, 10**6, {"w": torch.zeros(1)}, {}, keep=1)
    assert names(tmp_path) == ["step_1000000"]


def die_at(point: int) -> None:
    """Makes the point-th system call that changes a directory or waits for the disk the last thing not done."""
    left = itertools.count(1)

    def deadly(function):
        def wrapped(*args, **kwargs):
            if next(left) == point:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return wrapped

    for name in ("fsync", "rename", "mkdir", "rmdir", "unlink"):
        setattr(os, name, deadly(getattr(os, name)))


@pytest.mark.parametrize("step", [1, 2])
def test_killed_at_every_point_of_a_save(tmp_path, step):
    """Step 1 is there already and is written again or, by a save of step 2, pruned."""
    for point in itertools.count(1):
        directory = tmp_path / str(point)
        checkpoint.save(directory, 1, {"w": torch.full((1000,), 1.0)}, {"n": 1})

        def save(directory=directory, point=point) -> None:
            die_at(point)
            checkpoint.save(directory, step, {"w": torch.full((1000,), 2.0)}, {"n": 2}, keep=1)

        code = os.waitstatus_to_exitcode(os.waitpid(fork(save), 0)[1])
        assert code in (0, -signal.SIGKILL)
        path, skipped = checkpoint.latest_valid(directory)
        assert path is not None, names(directory)
        assert not skipped
        tensors, state, _ = checkpoint.load(path)
        assert torch.equal(tensors["w"], torch.full((1000,), float(state["n"])))
        assert state["n"] == 2 or code
        checkpoint.save(directory, 5, {"w": torch.zeros(1)}, {}, keep=1)
        assert names(directory) == ["step_5"]
        if code == 0:
            break
    assert point > 8, "the save went through before all its system calls were met"
