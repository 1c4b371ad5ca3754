"""Steps that must not be taken are not, and are counted."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import nn

from fastbert import rng
from fastbert.optim import AdamW
from fastbert.train.engine import LocalEngine, TrainingDiverged
from fastbert.train.pretrain import pretrain


def make(patience: int = 5, **options):
    model = nn.Linear(3, 1)
    return model, LocalEngine(model, AdamW(model.parameters(), lr=0.1), patience=patience, **options)


def state_of(engine) -> list[torch.Tensor]:
    tensors = [p.detach().clone() for p in engine.parameters]
    for values in engine.optimizer.state.values():
        tensors += [torch.as_tensor(value).clone() for value in values.values()]
    return tensors


def one_step(model, engine, scale: float = 1.0) -> float:
    engine.backward(lambda: (model(torch.ones(2, 3)) * scale).sum())
    return engine.step(0.1)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("on_device", [False, True])
def test_a_broken_gradient_is_skipped_and_counted(bad, on_device):
    model, engine = make(on_device=on_device)
    one_step(model, engine)
    engine.settle()
    before = state_of(engine)
    engine.backward(lambda: model(torch.ones(2, 3)).sum())
    model.weight.grad[0, 1] = bad  # a single element
    assert not math.isfinite(engine.step(0.1))
    engine.settle()
    assert all(torch.equal(a, b) for a, b in zip(before, state_of(engine), strict=True))
    assert (engine.skipped, model.weight.grad) == (1, None)
    assert math.isfinite(one_step(model, engine))
    assert not torch.equal(before[0], model.weight)
    assert engine.skipped == 1
    _, resumed = make()
    resumed.restore(Path("step_3"), *engine.state())
    assert (resumed.skipped, resumed.micro_step) == (1, 3)


def test_a_step_that_is_left_out_leaves_nothing_to_the_next():
    model, engine = make()
    _, other = make()
    other.restore(Path("step_0"), *engine.state())
    engine.backward(lambda: (model(torch.ones(2, 3)) * 1e3).sum())
    before = state_of(engine)
    engine.leave_out()
    assert all(torch.equal(a, b) for a, b in zip(before, state_of(engine), strict=True))
    assert one_step(model, engine) == one_step(other.model, other)
    assert all(torch.equal(a, b) for a, b in zip(state_of(engine), state_of(other), strict=True))


def test_five_in_a_row_end_the_training_with_the_parameters_unchanged():
    model, engine = make()
    one_step(model, engine)
    before = state_of(engine)
    for _ in range(4):
        one_step(model, engine, math.nan)
    with pytest.raises(TrainingDiverged, match="5 steps in a row"):
        one_step(model, engine, math.nan)
    assert all(torch.equal(a, b) for a, b in zip(before, state_of(engine), strict=True))


@pytest.mark.parametrize("on_device", [False, True])
def test_a_good_step_between_starts_the_count_again(on_device):
    model, engine = make(patience=2, on_device=on_device)
    for scale in (math.nan, 1.0, math.nan, 1.0, math.nan):
        one_step(model, engine, scale)
    engine.settle()
    assert engine.skipped == 3
    one_step(model, engine)

    def break_one():
        one_step(model, engine, math.nan)
        engine.settle()

    break_one()
    with pytest.raises(TrainingDiverged, match="2 steps in a row"):
        break_one()


def test_the_update_is_that_of_the_clipped_mean():
    """Two backward passes and a step, by hand: g = 2 x 2 x (1, 1, 1, and 1 for the bias), norm 8, clipped to 1."""
    model = nn.Linear(3, 1, dtype=torch.float64)
    before = [p.detach().clone() for p in model.parameters()]
    groups = [{"params": [p]} for p in model.parameters()]  # the rate is every group's
    engine = LocalEngine(model, torch.optim.SGD(groups, lr=9.0), clip=1.0)
    for _ in range(2):
        engine.backward(lambda: model(torch.ones(2, 3, dtype=torch.float64)).sum())
    assert engine.step(0.5) == pytest.approx(8.0)
    for p, old in zip(model.parameters(), before, strict=True):
        # The clip divides by 8 + 1e-6, as torch's does.
        torch.testing.assert_close(p.detach(), old - 0.5 * 4 / (8 + 1e-6), rtol=1e-12, atol=1e-12)


def test_each_micro_step_draws_other_dropout_and_the_same_again():
    model, engine = make(seed=7)
    keys = []

    def loss():
        keys.append(rng.current())
        return model(torch.ones(1, 3)).sum()

    for _ in range(3):
        engine.backward(loss)
    assert keys == [rng.DropoutKey(7, n) for n in range(3)]
    engine.micro_step = 1
    engine.backward(loss)
    assert keys[-1] == keys[1]


def test_a_run_that_diverges_says_so_and_leaves_the_last_good_checkpoint(recipe, tmp_path):
    from fastbert import BertForPreTraining
    from fastbert.train import checkpoint

    config = recipe(steps=20, save_every=2, warmup=0.0)
    model = BertForPreTraining.from_pretrained(config.model)

    def poison(row: dict) -> None:
        if row["step"] == 3:
            model.cls.seq_relationship.bias.register_hook(lambda gradient: gradient * math.nan)

    with pytest.raises(TrainingDiverged, match="5 steps in a row"):
        pretrain(config, model=model, callbacks=[poison], quiet=True)
    rows = [r for r in checkpoint_rows(tmp_path / "run") if r["kind"] == "train"]
    assert [row["skipped_steps"] for row in rows] == [0, 0, 0, 1, 2, 3, 4]
    # What was saved while steps were skipped is the model of step 3, and so is what is in memory.
    path, skipped = checkpoint.latest_valid(tmp_path / "run" / "checkpoints")
    assert (path.name, skipped) == ("step_6", [])
    saved = checkpoint.load(path)[0]
    assert all(torch.equal(p, saved[f"model.{name}"]) for name, p in model.named_parameters())


def checkpoint_rows(run_dir) -> list[dict]:
    from fastbert.train.metrics import read_metrics

    return read_metrics(run_dir / "metrics.jsonl")
