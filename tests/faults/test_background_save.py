"""Saving while training goes on: what is written is the moment of the call, and no error is lost."""

from __future__ import annotations

import threading
import time

import pretraining_runs as runs
import pytest
import torch

from fastbert.errors import CheckpointError
from fastbert.train import checkpoint
from fastbert.train.background_save import BackgroundSave
from fastbert.train.pretrain import pretrain


class Gate:
    """`checkpoint.save` that begins when it is let; counts how many are under way at once."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.open, self.error = threading.Event(), error
        self.now, self.most = 0, 0

    def __call__(self, *args, **options):
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            assert self.open.wait(20)
            if self.error is not None:
                raise self.error
            return checkpoint.save(*args, **options)
        finally:
            self.now -= 1


def test_what_is_saved_is_the_moment_of_the_call(tmp_path):
    gate = Gate()
    saver = BackgroundSave(gate)
    weight, state = torch.ones(5, 3), {"window": {"n": 1}}
    saver.submit(tmp_path, 1, {"w": weight}, state)
    weight.fill_(2.0)  # training goes on
    state["window"]["n"] = 2
    assert saver.busy
    saver.check()
    gate.open.set()
    saver.wait()
    assert not saver.busy
    tensors, saved, _ = checkpoint.load(tmp_path / "step_1")
    assert torch.equal(tensors["w"], torch.ones(5, 3))
    assert saved == {"window": {"n": 1}}


def test_a_tensor_that_has_become_another_is_saved_as_it_is(tmp_path):
    saver = BackgroundSave()
    for step, weight in enumerate((torch.rand(3), torch.rand(3, dtype=torch.float64), torch.rand(2, 2)), 1):
        saver.submit(tmp_path, step, {"w": weight}, {})
        saver.wait()
        saved = checkpoint.load(tmp_path / f"step_{step}")[0]["w"]
        assert saved.dtype == weight.dtype
        assert torch.equal(saved, weight)


def test_at_most_one_is_under_way_and_the_copy_is_used_again(tmp_path):
    gate = Gate()
    gate.open.set()
    saver = BackgroundSave(gate)
    weights = {"w": torch.zeros(1000), "half": torch.zeros(3).bfloat16(), "empty": torch.zeros(0, 2)}
    places = set()
    for step in range(1, 8):
        for value in weights.values():
            value.fill_(step)
        saver.submit(tmp_path, step, weights, {}, keep=2)
        places.add(saver._copies["w"].data_ptr())
    saver.wait()
    assert gate.most == 1
    assert len(places) == 1
    for step in (6, 7):
        tensors = checkpoint.load(tmp_path / f"step_{step}")[0]
        assert all(
            bool((value == step).all()) and value.dtype == weights[name].dtype for name, value in tensors.items()
        )


@pytest.mark.parametrize(
    ("error", "said"), [(CheckpointError("no room"), "^no room$"), (ValueError("x"), r"in the background: ValueError")]
)
def test_an_error_comes_to_light_once(tmp_path, error, said):
    gate = Gate(error)
    saver = BackgroundSave(gate)
    saver.submit(tmp_path, 1, {"w": torch.ones(2)}, {})
    saver.check()  # not yet
    gate.open.set()
    with pytest.raises(CheckpointError, match=said):
        saver.wait()
    saver.check()
    gate.error = None
    saver.submit(tmp_path, 2, {"w": torch.ones(2)}, {})
    saver.wait()
    assert checkpoint.latest_valid(tmp_path)[0].name == "step_2"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return runs.prepare_data(tmp_path_factory.mktemp("background") / "data")


def test_a_run_that_saves_in_the_background_is_the_run_that_does_not(data, tmp_path):
    alone, ours = tmp_path / "alone", tmp_path / "ours"
    pretrain(runs.config(data, alone, steps=12, save_every=3), quiet=True)
    pretrain(runs.config(data, ours, steps=12, save_every=3, async_save=True), quiet=True)
    runs.assert_same_run(ours, alone, 12)
    # A step before the last too: it was written while training went on.
    for got, expected in zip(runs.checkpoint_of(ours, 9), runs.checkpoint_of(alone, 9), strict=True):
        assert got.keys() == expected.keys()
        assert all(bool(torch.as_tensor(got[n] == expected[n]).all()) for n in got if isinstance(got[n], torch.Tensor))
    # And it can be gone on from.
    pretrain(runs.config(data, ours, steps=14, resume="auto", async_save=True), quiet=True)
    assert checkpoint.latest_valid(ours / "checkpoints")[0].name == "step_14"


def slow_saves(monkeypatch, seconds: float = 0.3, fail_at: int | None = None) -> list[int]:
    """Makes every save in the background slow, one of them fail; returns the steps as they are written."""
    real, written = checkpoint.save, []

    def slow(directory, step, tensors, state, **options):
        if threading.current_thread() is not threading.main_thread():
            time.sleep(seconds)
            if step == fail_at:
                raise CheckpointError(f"{directory}/step_{step}: 10 bytes could not be written: No space left")
        path = real(directory, step, tensors, state, **options)
        written.append(step)
        return path

    monkeypatch.setattr(BackgroundSave.__init__, "__defaults__", (slow,))
    monkeypatch.setattr(checkpoint, "save", slow)
    return written


def test_a_signal_waits_for_what_is_under_way(data, tmp_path, monkeypatch):
    written = slow_saves(monkeypatch)
    config = runs.config(data, tmp_path / "run", save_every=4, async_save=True)
    result = pretrain(config, callbacks=[runs.stop_after(4)], quiet=True)
    assert (result.steps, result.interrupted, written) == (4, "SIGTERM", [4])
    assert checkpoint.latest_valid(tmp_path / "run" / "checkpoints")[0].name == "step_4"


def test_a_failed_save_ends_the_run_at_the_next_step(data, tmp_path, monkeypatch):
    slow_saves(monkeypatch, 0.0, fail_at=4)
    with pytest.raises(CheckpointError, match=r"step_4: 10 bytes could not be written"):
        pretrain(runs.config(data, tmp_path / "run", save_every=2, async_save=True), quiet=True)
    assert checkpoint.latest_valid(tmp_path / "run" / "checkpoints")[0].name == "step_2"
    assert not [thread.name for thread in threading.enumerate() if thread.name == "fastbert-save"]


def test_or_training_goes_on_without_it(data, tmp_path, monkeypatch, capsys):
    written = slow_saves(monkeypatch, 0.0, fail_at=4)
    config = runs.config(data, tmp_path / "run", steps=7, save_every=2, async_save=True, save_errors="continue")
    assert pretrain(config).steps == 7
    assert "training goes on without it" in capsys.readouterr().out
    assert written == [2, 6, 7]
