"""RELIABILITY 1 in its full length; tests/train/test_resume.py has the short forms."""

from __future__ import annotations

import dataclasses
import multiprocessing

import pretraining_runs as runs
import pytest

from fastbert.train.pretrain import pretrain

STEPS = 200


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("num_workers", [0, 4])
def test_200_steps_are_100_and_100(tmp_path, num_workers):
    """Three micro-batches a step, dropout on, each half in a process of its own, the cut inside an epoch."""
    data = runs.prepare_data(tmp_path / "data")
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    changes = {"accumulate": 3, "eval_every": 30, "log_every": 7, "steps": STEPS}
    pretrain(runs.config(data, whole, **changes), quiet=True)
    half = runs.config(data, cut, num_workers=num_workers, save_every=100, **changes)
    context = multiprocessing.get_context("spawn")
    child = context.Process(target=stop_at_100, args=(half,))
    child.start()
    child.join()
    assert child.exitcode == 0
    state = runs.checkpoint_of(cut, 100)[1]
    assert state["place"][1] > 0
    assert state["windows"][0]["steps"] > 0, "the cut is inside a line of the log"
    child = context.Process(target=runs.pretrain_in_child, args=(dataclasses.replace(half, resume="auto"),))
    child.start()
    child.join()
    assert child.exitcode == 0
    runs.assert_same_run(cut, whole, STEPS)


def stop_at_100(config) -> None:
    import signal

    import torch

    from fastbert.train.loop import PretrainLoop

    torch.set_num_threads(1)
    real = PretrainLoop.train_step

    def step(self) -> None:
        real(self)
        if self.step == 100:
            signal.raise_signal(signal.SIGTERM)

    PretrainLoop.train_step = step
    assert pretrain(config, quiet=True).steps == 100
