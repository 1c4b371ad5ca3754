"""The loss scale by hand: halved by an overflow, doubled after so many good steps, never below one."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from fastbert.optim import AdamW
from fastbert.train.engine import LocalEngine, TrainingDiverged
from fastbert.train.loss_scale import LossScale

CPU = torch.device("cpu")


def test_by_hand():
    scale = LossScale(CPU, True, interval=3)
    seen = []
    for finite in (0, 1, 1, 1, 1, 1, 0, 1, 1, 1):
        scale.update(torch.tensor(finite))
        seen.append(math.log2(scale.state()["scale"]))
        assert float(scale.inverse) == 1 / float(scale.scale)
    assert seen == [15, 15, 15, 16, 16, 16, 15, 15, 15, 16]


def test_it_ends_at_one_and_says_that_there_is_no_hope():
    scale = LossScale(CPU, True)
    hopeless = [bool(scale.update(torch.tensor(0.0))) for _ in range(18)]
    assert hopeless == [False] * 16 + [True] * 2
    assert scale.state() == {"scale": 1.0, "good": 0}
    assert not scale.update(torch.tensor(1.0))


def test_it_does_not_grow_without_end():
    scale = LossScale(CPU, True, interval=1)
    for _ in range(20):
        scale.update(torch.tensor(True))
    assert scale.state()["scale"] == 2.0**24


def test_without_fp16_every_failure_counts():
    scale = LossScale(CPU, False)
    assert bool(scale.update(torch.tensor(False)))
    assert not scale.update(torch.tensor(True))
    assert scale.state() == {"scale": 1.0, "good": 0}
    loss = torch.tensor(2.0)
    assert scale.scaled(loss) is loss


def test_state_goes_on():
    scale, other = LossScale(CPU, True, interval=4), LossScale(CPU, True, interval=4)
    for finite in (0, 0, 1, 1):
        scale.update(torch.tensor(finite))
    other.restore(scale.state())
    assert float(other.inverse) == 1 / float(scale.scale)
    for _ in range(2):
        scale.update(torch.tensor(1))
        other.update(torch.tensor(1))
    assert scale.state() == other.state() == {"scale": 2.0**15, "good": 0}


@pytest.mark.parametrize("on_device", [False, True])
def test_an_engine_takes_the_scale_out_again(on_device):
    """The same update with and without, on gradients that are exact in binary."""
    weights, norms = [], []
    for precision in ("fp32", "fp16"):
        torch.manual_seed(0)
        model = nn.Linear(3, 1)
        engine = LocalEngine(model, AdamW(model.parameters(), lr=0.1), precision=precision, on_device=on_device)
        engine.autocast = lambda: torch.autocast("cpu", enabled=False)
        engine.backward(lambda model=model: model(torch.ones(2, 3)).sum())
        norms.append(float(engine.step(0.1)))
        weights.append([p.detach() for p in model.parameters()])
    assert norms == [4.0, 4.0]
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))


@pytest.mark.parametrize("on_device", [False, True])
def test_steps_that_a_smaller_scale_may_save_do_not_end_the_training(on_device):
    model = nn.Linear(3, 1)
    engine = LocalEngine(model, AdamW(model.parameters(), lr=0.1), precision="fp16", patience=2, on_device=on_device)

    def step() -> None:
        engine.backward(lambda: model(torch.full((2, 3), math.nan)).sum())
        engine.step(0.1)
        engine.settle()

    for _ in range(17):
        step()
    assert (engine.skipped, engine.scale.state()["scale"]) == (17, 1.0)
    with pytest.raises(TrainingDiverged):
        step()
