"""RELIABILITY 4 in its full length: 200 times kill -9 at random moments of a run that saves all the time.

The short form is in tests/train: test_checkpoint_kill.py (40 kills inside a save, and one at every system call of it)
and test_resume.py (4 kills of a run, whose figures are then those of one left alone).
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import random
import shutil
import signal
import time

import pretraining_runs as runs
import pytest

from fastbert.train import checkpoint
from fastbert.train.pretrain import pretrain

KILLS, STEPS, INTERVAL = 200, 60, 3


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("asynchronous", [False, True])
def test_200_kills_lose_no_more_than_one_interval(tmp_path, monkeypatch, asynchronous):
    data = runs.prepare_data(tmp_path / "data")
    pretrain(runs.config(data, tmp_path / "whole", steps=STEPS), quiet=True)
    monkeypatch.chdir(tmp_path)
    for name, value in runs.environment().items():
        monkeypatch.setenv(name, value)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pretraining_runs", "fastbert.train.pretrain", "torch.utils.tensorboard"])
    draw, out, kills, finished, most_lost = random.Random(0), tmp_path / "run", 0, 0, 0
    config = runs.config(data, out, steps=STEPS, save_every=INTERVAL, async_save=asynchronous, resume="auto")
    # In the background the newest may still be on its way when the next is due.
    allowed = INTERVAL * (2 if asynchronous else 1)

    while kills < KILLS:
        child = context.Process(target=runs.pretrain_in_child, args=(config,))
        child.start()
        before = runs.last_step(out)
        while runs.last_step(out) < min(before + draw.randint(1, 6), STEPS) and child.is_alive():
            time.sleep(0.005)
        time.sleep(draw.uniform(0, 0.05))
        child.kill()
        child.join()
        if child.exitcode == 0:  # it came to its end first
            runs.assert_same_run(out, tmp_path / "whole", STEPS)
            finished += 1
            shutil.rmtree(out)
            continue
        assert child.exitcode == -signal.SIGKILL
        kills += 1
        newest, skipped = checkpoint.latest_valid(out / "checkpoints")
        assert not skipped, "a checkpoint under its final name is whole"
        lost = runs.last_step(out) - (int(newest.name.removeprefix("step_")) if newest else 0)
        most_lost = max(most_lost, lost)
        assert lost <= allowed
    print(f"{kills} kills, {finished} runs that came to their end in between, at most {most_lost} steps lost")
    shutil.rmtree(out, ignore_errors=True)
    pretrain(dataclasses.replace(config, resume=None), quiet=True)
    runs.assert_same_run(out, tmp_path / "whole", STEPS)
