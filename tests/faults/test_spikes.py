"""RELIABILITY 13: a loss far above those before it is left out, if asked for, and goes on so after a resume."""

from __future__ import annotations

import math

import pretraining_runs as runs
import pytest
import torch

from fastbert.errors import InputError
from fastbert.train.config import PretrainConfig
from fastbert.train.pretrain import pretrain
from fastbert.train.spikes import SpikeRule


def test_the_limit_by_hand():
    """2, 4, 4, 4, 5, 5, 7, 9 have mean 5 and deviation 2: with 3 sigma, 11 is the limit."""
    rule = SpikeRule(3.0, 8)
    for loss in (2, 4, 4, 4, 5, 5, 7, 9):
        assert rule.limit == math.inf
        assert not rule.leaves_out(float(loss))
    assert rule.limit == pytest.approx(11.0)
    assert rule.leaves_out(11.001)
    assert rule.limit == pytest.approx(11.0), "what is left out does not count"
    assert not rule.leaves_out(10.999)
    assert rule.count == 1


def test_a_new_level_is_no_spike():
    rule = SpikeRule(3.0, 4)
    for loss in (1.0, 1.1, 0.9, 1.0):
        rule.leaves_out(loss)
    assert [rule.leaves_out(5.0) for _ in range(8)] == [True] * 5 + [False] * 3
    assert rule.count == 5
    # On the new level five are left out again.
    assert not rule.leaves_out(5.1)
    assert [rule.leaves_out(50.0) for _ in range(6)] == [True] * 5 + [False]


@pytest.mark.parametrize("odd", [math.inf, -math.inf, math.nan])
def test_a_window_holds_no_loss_that_is_not_finite(odd):
    rule = SpikeRule(6.0, 3)
    assert [rule.leaves_out(loss) for loss in (1.0, odd, 1.1, 1.2, 1.3)] == [False] * 5
    assert math.isfinite(rule.limit)
    assert rule.state()["losses"] == [1.1, 1.2, 1.3]


def test_a_nan_is_the_engines_affair():
    rule = SpikeRule(3.0, 2)
    for loss in (1.0, math.nan, 1.2):
        assert not rule.leaves_out(loss)
    assert rule.limit == pytest.approx(1.1 + 3 * 0.1)


def test_state_goes_on():
    rule, other = SpikeRule(2.0, 3), SpikeRule(2.0, 3)
    for loss in (1.0, 2.0, 3.0, 50.0):
        rule.leaves_out(loss)
    other.restore(rule.state())
    assert (other.limit, other.count) == (rule.limit, 1)
    assert [other.leaves_out(50.0) for _ in range(5)] == [True] * 4 + [False], "five in a row, the one before included"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return runs.prepare_data(tmp_path_factory.mktemp("spikes") / "data")


def spoil(model, at: int):
    """A callback that makes the next step's loss huge after step ``at``, and takes it back after that."""
    held = {}

    def callback(row: dict) -> None:
        bias = model.cls.predictions.bias
        if row["kind"] == "train" and row["step"] == at:
            held["bias"] = bias.detach().clone()
            with torch.no_grad():
                bias[7] += 100.0
        elif row["kind"] == "train" and row["step"] == at + 1:
            held["after"] = bias.detach().clone()
            with torch.no_grad():
                bias.copy_(held["bias"])

    return callback, held


def test_in_a_run(data, tmp_path, capsys):
    from fastbert.data.config import SampleConfig
    from fastbert.data.pretraining import PretrainingData
    from fastbert.data.shards import ShardSet
    from fastbert.train.model_and_data import build_model

    shown = {}
    for name, sigma in (("off", None), ("on", 6.0)):
        config = runs.config(data, tmp_path / name, steps=14, spike_sigma=sigma, spike_window=8, eval_every=1000)
        opened = PretrainingData(ShardSet.open(data), SampleConfig(max_seqlen=32))
        model = build_model(config, opened)
        callback, held = spoil(model, at=10)
        result = pretrain(config, model=model, callbacks=[callback])
        shown[name] = capsys.readouterr().out
        rows = [row for row in result.history if row["kind"] == "train"]
        expected = held["bias"].clone()
        expected[7] += 100.0
        untouched = torch.equal(held["after"], expected)
        assert untouched == (name == "on"), "the update of step 11"
        assert [row.get("left_out_steps") for row in rows[9:12]] == ([None] * 3 if name == "off" else [0, 1, 1])
    assert "step 11 was left out: its loss" in shown["on"]
    assert "left out" not in shown["off"]


def test_a_resume_goes_on_with_the_window(data, tmp_path):
    # A window that is full only after the cut, and a rule so strict, on losses that do not fall, that it leaves the
    # seventh step out.
    changes = {"spike_sigma": 0.5, "spike_window": 5, "steps": 9, "lr": 1e-5}
    pretrain(runs.config(data, tmp_path / "alone", **changes), quiet=True)
    pretrain(runs.config(data, tmp_path / "cut", **changes), callbacks=[runs.stop_after(4)], quiet=True)
    result = pretrain(runs.config(data, tmp_path / "cut", resume="auto", **changes), quiet=True)
    runs.assert_same_run(tmp_path / "cut", tmp_path / "alone", 9)
    assert [row["left_out_steps"] for row in result.history if row["kind"] == "train"][5:7] == [0, 1]


@pytest.mark.parametrize("wrong", [{"spike_sigma": 0.0}, {"spike_sigma": -1.0}, {"spike_window": 1}])
def test_options_that_make_no_sense(wrong):
    with pytest.raises(InputError, match="spike_sigma must be above 0 and spike_window at least 2"):
        PretrainConfig(**wrong)


def test_off_by_default():
    assert PretrainConfig().spike_sigma is None


def test_a_step_that_is_left_out_has_a_row_of_its_own(data, tmp_path):
    """However often a line is told: no norm, where that of the step before stood, and the rate that it had."""
    changes = {"spike_sigma": 0.5, "spike_window": 5, "steps": 9, "lr": 1e-5}
    found = []
    for every in (1, 9):
        pretrain(runs.config(data, tmp_path / str(every), log_every=every, **changes), quiet=True)
        found.append(runs.rows(tmp_path / str(every), "steps.jsonl"))
    for one, other in zip(*found, strict=True):
        assert one == pytest.approx(other, rel=1e-9, abs=1e-12)
    before, left_out, after = found[1][5:8]
    assert (left_out["left_out_steps"], left_out["grad_norm"]) == (1, 0.0)
    assert before["lr"] > left_out["lr"] > after["lr"]
