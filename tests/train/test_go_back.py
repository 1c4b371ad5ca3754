"""A run that goes back to an earlier checkpoint goes back once, and what it left does not come back."""

from __future__ import annotations

import dataclasses

import pretraining_runs as runs
import pytest

from fastbert.data.pretraining import PretrainingData
from fastbert.data.shards import ShardSet
from fastbert.errors import CheckpointError, InputError
from fastbert.train import distributed
from fastbert.train.config import PretrainConfig
from fastbert.train.loop import PretrainLoop
from fastbert.train.model_and_data import build_model
from fastbert.train.pretrain import pretrain

OPTIONS = {"model": "1x16x1", "accumulate": 1, "eval_every": 1000, "keep": 10}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return runs.prepare_data(tmp_path_factory.mktemp("go_back") / "data")


def names(out) -> list[str]:
    """Of the checkpoints, those that are set aside without their id."""
    found = [path.name.partition("-")[0] for path in (out / "checkpoints").iterdir()]
    return sorted(found, key=lambda name: (int(name.partition("_")[2].partition(".")[0]), name))


def test_the_options_of_a_run_that_went_back_do_not_go_back_again(data, tmp_path):
    """Whoever started the run with its config.yaml set aside what it had come to."""
    out = tmp_path / "run"
    pretrain(runs.config(data, out, **OPTIONS, steps=4, save_every=2), quiet=True)
    back = runs.config(data, out, **OPTIONS, steps=6, save_every=2, resume=str(out / "checkpoints" / "step_2"))
    pretrain(back, quiet=True)
    assert names(out) == ["step_2", "step_4", "step_4.left", "step_6"]
    kept = PretrainConfig.from_yaml(out / "config.yaml")
    assert kept == dataclasses.replace(back, resume=None)
    with pytest.raises(InputError, match="already holds a run: resume it with --resume auto"):
        pretrain(kept, quiet=True)
    auto = dataclasses.replace(kept, resume="auto")
    pretrain(auto, quiet=True)
    assert PretrainConfig.from_yaml(out / "config.yaml") == auto
    assert names(out) == ["step_2", "step_4", "step_4.left", "step_6"]


def test_a_run_that_torchrun_starts_again_does_not_go_back_again(data, tmp_path, monkeypatch, caplog):
    """It repeats the command. But a run that failed before it had gone back has yet to do so."""
    out, options = tmp_path / "run", {**OPTIONS, "steps": 9, "save_every": 3}
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "first")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    pretrain(runs.config(data, out, **options), quiet=True)
    back = runs.config(data, out, **options, resume=str(out / "checkpoints" / "step_3"))
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "second")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")  # the first start failed
    assert pretrain(back, callbacks=[runs.stop_after(7)], quiet=True).steps == 7
    assert not caplog.records
    assert names(out) == ["step_3", "step_6", "step_6.left", "step_7", "step_9.left"]
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    steps = []
    pretrain(back, callbacks=[lambda row: steps.append(row["step"])], quiet=True)
    assert steps[0] == 8
    told = (
        f"torchrun has started the run again: it goes on from {out}/checkpoints/step_7, and not back to {back.resume}"
    )
    assert caplog.messages == [told]
    assert names(out) == ["step_3", "step_6", "step_6.left", "step_7", "step_9", "step_9.left"]
    last = dataclasses.replace(back, resume=str(out / "checkpoints" / "step_9"))
    pretrain(last, quiet=True)
    assert len(caplog.messages) == 1, "there is no newer one"
    # What is asked for has to be there all the same.
    missing = dataclasses.replace(back, resume=str(out / "checkpoints" / "step_4"))
    with pytest.raises(CheckpointError, match="found none"):
        pretrain(missing, quiet=True)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "third")  # a command of its own
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    pretrain(back, callbacks=[lambda row: steps.append(row["step"])], quiet=True)
    assert 4 in steps


def test_a_damaged_checkpoint_takes_no_place_and_does_not_come_back(data, tmp_path, capsys):
    """It counted as the newest of those to keep, so that good ones were removed for it, or instead of it."""
    out, options = tmp_path / "run", {**OPTIONS, "save_every": 2, "keep": 2}
    pretrain(runs.config(data, out, **options, steps=8), quiet=True)
    (out / "checkpoints" / "step_8" / "weights.safetensors").write_bytes(b"damaged")
    auto = runs.config(data, out, **options, steps=8, resume="auto")
    pretrain(auto, callbacks=[runs.stop_after(7)])
    assert "left behind, and not removed: step_8.left-" in capsys.readouterr().out
    assert names(out) == ["step_6", "step_7", "step_8.left"]
    pretrain(auto, quiet=True)
    assert names(out) == ["step_7", "step_8", "step_8.left"]


def test_a_rank_takes_the_first_ones_word_for_the_best_model(data, tmp_path, monkeypatch):
    """Ranks that differed on it wrote, and met, at different evaluations."""
    config = runs.config(data, tmp_path / "run", **OPTIONS, steps=1)
    pretrain(config, quiet=True)
    pretraining = PretrainingData(ShardSet.open(data), config.samples)
    loop = PretrainLoop(config, build_model(config, pretraining), pretraining, None, tmp_path, None)
    monkeypatch.setattr(distributed, "on_first", lambda world, call: {"step": 1, "told": "by rank 0"})
    loop.checkpoints.restore(tmp_path / "run" / "checkpoints" / "step_1")
    assert loop.best == {"step": 1, "told": "by rank 0"}
