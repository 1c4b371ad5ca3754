"""A run that was cut in two, or killed, comes to the same bits as one that was left alone."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import random
import shutil
import signal
import subprocess
import sys
import time

import levels
import pretraining_runs as runs
import pytest
import torch

import fastbert
from fastbert import _native
from fastbert.data.config import SampleConfig
from fastbert.data.pretraining import PretrainingData
from fastbert.data.shards import ShardSet
from fastbert.errors import CheckpointError, InputError
from fastbert.train import checkpoint, evaluation
from fastbert.train.distributed import World
from fastbert.train.loop import PretrainLoop
from fastbert.train.model_and_data import build_model
from fastbert.train.pretrain import pretrain

STEPS = 40
# What a run imports, some of it late: children that find it there take a second and not six.
_SLOW_IMPORTS = [
    "pretraining_runs",
    "fastbert.train.pretrain",
    "torch.utils.tensorboard",
    "matplotlib.figure",
    "matplotlib.backends.backend_agg",
]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return runs.prepare_data(tmp_path_factory.mktemp("resume") / "data")


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    """The run directory of 40 steps without a pause."""
    out = tmp_path_factory.mktemp("whole") / "run"
    pretrain(runs.config(data, out), quiet=True)
    return out


def _in_two_parts(config, step: int):
    """Stops after that step, resumes; returns the second part's result."""
    first = pretrain(config, callbacks=[runs.stop_after(step)], quiet=True)
    assert (first.steps, first.interrupted) == (step, "SIGTERM")
    second = pretrain(dataclasses.replace(config, resume="auto"), quiet=True)
    assert (second.steps, second.interrupted) == (config.steps, None)
    return second


@pytest.mark.parametrize(("step", "num_workers"), [(20, 0), (13, 2)])
def test_two_parts_equal_the_whole(data, whole, tmp_path, step, num_workers):
    """20 is not a multiple of the 8 steps between evaluations, 13 lies elsewhere in the epoch."""
    out = tmp_path / "run"
    result = _in_two_parts(runs.config(data, out, num_workers=num_workers), step)
    assert not multiprocessing.active_children(), "workers end with their run"
    runs.assert_same_run(out, whole, STEPS)
    assert [row["step"] for row in result.history if row["kind"] == "train"] == list(range(1, STEPS + 1))
    at_cut, at_end = (checkpoint.load(out / "checkpoints" / f"step_{n}")[1] for n in (step, STEPS))
    for clock in ("seconds", "processor_seconds"):
        assert 0 < at_cut[clock] < at_end[clock] <= getattr(result, clock)
    # The cut is inside an epoch and the run is longer than one, else the place in the data would not matter.
    (epoch, index), (last_epoch, _) = (state["place"] for _, state in (runs.checkpoint_of(out, n) for n in (step, 40)))
    assert index > 0
    assert last_epoch > epoch


def test_stopped_in_the_last_step_the_last_evaluation_is_made_up_for(data, tmp_path):
    alone, cut = tmp_path / "alone", tmp_path / "cut"
    pretrain(runs.config(data, alone, steps=10), quiet=True)
    _in_two_parts(runs.config(data, cut, steps=10), 10)
    runs.assert_same_run(cut, alone, 10)


@pytest.mark.parametrize("changes", [{"precision": "bf16"}, {"activation_checkpointing": True, "correct_bias": True}])
def test_two_parts_equal_the_whole_in_other_modes(data, tmp_path, changes):
    alone, cut = tmp_path / "alone", tmp_path / "cut"
    pretrain(runs.config(data, alone, steps=20, **changes), quiet=True)
    _in_two_parts(runs.config(data, cut, steps=20, **changes), 11)
    runs.assert_same_run(cut, alone, 20)


def test_a_new_process_goes_on_from_the_files_alone(data, whole, tmp_path):
    out = tmp_path / "run"
    pretrain(runs.config(data, out), callbacks=[runs.stop_after(20)], quiet=True)
    command = [sys.executable, "-m", "fastbert", "pretrain", "--config", out / "config.yaml", "--resume", "auto"]
    told = subprocess.run(
        list(map(str, command)),
        cwd=tmp_path,
        env=runs.environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert "at step 20" in told.stdout
    runs.assert_same_run(out, whole, STEPS)


def test_dropout_is_on_and_follows_the_seed(data, whole, tmp_path):
    """Else equal runs would prove little: without dropout no random numbers need to be found again."""
    losses = {}
    for name, changes in {"off": {"dropout": 0.0}, "on": {"dropout": 0.1}}.items():
        pretrain(runs.config(data, tmp_path / name, steps=3, schedule="constant", **changes), quiet=True)
        losses[name] = [row["loss"] for row in runs.rows(tmp_path / name) if row["kind"] == "train"]
    assert losses["on"][0] == runs.rows(whole)[0]["loss"]
    assert losses["on"][0] != losses["off"][0]


def test_a_damaged_checkpoint_is_passed_over(data, whole, tmp_path, caplog):
    out = tmp_path / "run"
    pretrain(runs.config(data, out, save_every=10), callbacks=[runs.stop_after(20)], quiet=True)
    file = out / "checkpoints" / "step_20" / "weights.safetensors"
    blob = bytearray(file.read_bytes())
    blob[len(blob) // 2] ^= 1
    file.write_bytes(blob)
    pretrain(runs.config(data, out, resume="auto"), quiet=True)
    assert "step_20" in caplog.text
    assert "SHA-256" in caplog.text
    runs.assert_same_run(out, whole, STEPS)


def test_no_valid_checkpoint_is_an_error_and_not_a_new_start(data, tmp_path):
    out = tmp_path / "run"
    pretrain(runs.config(data, out, steps=2), quiet=True)
    (out / "checkpoints" / "step_2" / "manifest.json").write_text("{")
    before = (out / "metrics.jsonl").read_bytes()
    with pytest.raises(CheckpointError, match="none of its 1 checkpoints is valid"):
        pretrain(runs.config(data, out, steps=4, resume="auto"), quiet=True)
    assert (out / "metrics.jsonl").read_bytes() == before


def test_rows_edited_by_hand_do_not_end_a_resumed_run(data, tmp_path, caplog):
    """Its report computes with them, as `fastbert report` does, which leaves out what is no row any more."""
    config = runs.config(data, tmp_path / "run")
    pretrain(config, callbacks=[runs.stop_after(20)], quiet=True)
    log = tmp_path / "run" / "metrics.jsonl"
    first, *rows = log.read_text().splitlines(keepends=True)
    log.write_text("".join([json.dumps(json.loads(first) | {"mfu": "high"}) + "\n", *rows]))
    result = pretrain(dataclasses.replace(config, resume="auto"), quiet=True)
    assert result.steps == STEPS
    assert f"{log}, line 1 is left out: expected a row of metrics, got 'high' as its mfu" in caplog.messages
    assert log.read_text().splitlines(keepends=True)[: len(rows)] == rows


def test_resume_auto_without_a_run_begins_one(data, tmp_path):
    result = pretrain(runs.config(data, tmp_path / "run", steps=2, resume="auto"), quiet=True)
    assert result.steps == 2


def test_a_run_is_not_overwritten(data, whole):
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*")}
    with pytest.raises(InputError, match="already holds a run"):
        pretrain(runs.config(data, whole), quiet=True)
    assert {path: path.stat().st_mtime_ns for path in whole.rglob("*")} == before


@pytest.mark.parametrize("resume", [None, "auto", "elsewhere"])
def test_what_other_commands_made_is_not_overwritten(data, whole, tmp_path, resume):
    """A run replaces model/ and config.yaml, which are a fine-tuned model's too; and one whose checkpoints were removed
    to save room has its model left."""
    held = {
        "a run of `fastbert finetune`": ("model/config.json", "ended.json", "config.yaml"),
        "prepared data": ("manifest.json", "train/shard-00000.bin"),
        "a model": ("config.json", "model.safetensors"),
    }
    if resume is None:  # auto is asked to begin anew
        held["the model of a run that has ended"] = ("model/config.json", "report.html", "config.yaml")
    resume = str(whole / "checkpoints" / f"step_{STEPS}") if resume == "elsewhere" else resume
    for number, (what, names) in enumerate(held.items()):
        out = tmp_path / str(number)
        for name in names:
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            (out / name).write_text("theirs")
        before = sorted(out.rglob("*"))
        with pytest.raises(InputError, match=f"already holds {what}: choose another --out"):
            pretrain(runs.config(data, out, resume=resume), quiet=True)
        assert sorted(out.rglob("*")) == before
        assert {(out / name).read_text() for name in names} == {"theirs"}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model": "2x64x2"}, "for this model"),
        ({"model": "3x32x2"}, "not this model's"),
        ({"model": "2x32x4"}, "expected a model of 2 attention heads, as it was trained, got one of 4"),
    ],
)
def test_a_checkpoint_of_another_model_is_refused(data, whole, tmp_path, changes, sentence):
    path = whole / "checkpoints" / f"step_{STEPS}"
    with pytest.raises(CheckpointError, match=sentence):
        pretrain(runs.config(data, tmp_path / "run", resume=str(path), **changes), quiet=True)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"optimizer": "lamb"}, "expected the optimiser that it was trained with, adamw, .* got lamb"),
        ({"token_budget": 320}, "expected the token_budget that it was trained with, 256, .* got 320"),
        ({"samples": SampleConfig(max_seqlen=32, seed=4)}, "expected the samples.seed .* 0, .* got 4"),
        ({"samples": SampleConfig(max_seqlen=24)}, "expected the samples.max_seqlen .* 32, .* got 24"),
    ],
)
def test_a_checkpoint_of_other_batches_is_refused(data, whole, tmp_path, changes, sentence):
    path = whole / "checkpoints" / f"step_{STEPS}"
    with pytest.raises(CheckpointError, match=sentence):
        pretrain(runs.config(data, tmp_path / "run", resume=str(path), **changes), quiet=True)


def test_a_checkpoint_of_deepspeed_is_refused_without_it(data, whole, tmp_path):
    """It holds no tensors of ours, so that it looked like one of another model."""
    _, state, _ = checkpoint.load(whole / "checkpoints" / f"step_{STEPS}")
    state["deepspeed"] = {"world_size": 2, "stage": 3, "precision": "fp32"}
    path = checkpoint.save(tmp_path / "other" / "checkpoints", STEPS, {}, state)
    sentence = r"step_40: was written under DeepSpeed \(ZeRO stage 3\), .* go on with --zero 3, or start a new run"
    with pytest.raises(CheckpointError, match=sentence):
        pretrain(runs.config(data, tmp_path / "run", resume=str(path)), quiet=True)


def test_a_checkpoint_of_other_text_is_refused(data, whole, tmp_path):
    other = PretrainingData(ShardSet.open(data, "heldout"), SampleConfig(max_seqlen=32))
    manifest = other.shards.manifest
    files = {name: {**entry, "sha256": "0" * 64} for name, entry in manifest.files.items()}
    other.shards.manifest = dataclasses.replace(manifest, files=files)
    path = whole / "checkpoints" / f"step_{STEPS}"
    with pytest.raises(CheckpointError, match=r"the data that it was trained with, '\w{64}', .* got '\w{64}';"):
        pretrain(runs.config(data, tmp_path / "run", resume=str(path)), data=other, quiet=True)


def test_a_checkpoint_of_another_vocabulary_is_refused(whole, tmp_path):
    other = runs.prepare_data(tmp_path / "data", vocab_size=90)
    path = whole / "checkpoints" / f"step_{STEPS}"
    with pytest.raises(CheckpointError, match="another tokenizer"):
        pretrain(runs.config(other, tmp_path / "run", resume=str(path)), quiet=True)


def test_a_new_run_directory_from_another_runs_checkpoint_holds_a_model(data, whole, tmp_path):
    """The first run's best model is not in the second's directory, so it cannot be the second's best."""
    out = tmp_path / "run"
    path = str(whole / "checkpoints" / f"step_{STEPS}")
    # A rate that destroys the model: no evaluation of the second run is better than the first run's best.
    result = pretrain(runs.config(data, out, steps=44, resume=path, lr=10.0, schedule="constant"), quiet=True)
    assert (result.model_dir / "model.safetensors").is_file()
    assert result.steps == 44


def test_going_back_gives_up_the_way_that_was_left(data, tmp_path, capsys):
    """Without this, `resume auto` would take the newest checkpoint, which is of the run that was given up."""
    out = tmp_path / "run"
    pretrain(runs.config(data, out, steps=12, eval_every=4, save_every=2, keep=4), quiet=True)
    point = out / "checkpoints" / "step_6"
    shutil.copytree(point, tmp_path / "step_6")
    # A rate that destroys the model: step 4 would stay the best, and its model is no longer there.
    options = {"steps": 12, "eval_every": 4, "save_every": 2, "keep": 2, "lr": 1.0, "schedule": "constant"}
    back = runs.config(data, out, **options, resume=str(point))
    stopped = pretrain(back, callbacks=[runs.stop_after(9)])
    assert stopped.steps == 9
    assert "left behind, and not removed: step_12.left-" in capsys.readouterr().out
    left = sorted(path.name.partition(".")[0] for path in (out / "checkpoints").glob("*.left-*"))
    assert left == ["step_10", "step_12", "step_8"]
    # The model that lies there is of the new way too.
    assert stopped.heldout["step"] == 8
    auto = pretrain(dataclasses.replace(back, resume="auto"), quiet=True)
    options["resume"] = str(tmp_path / "step_6")
    straight = pretrain(runs.config(data, tmp_path / "straight", **options), quiet=True)
    assert auto.steps == straight.steps == 12
    ours, theirs = (runs.checkpoint_of(run, 12)[0] for run in (out, tmp_path / "straight"))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_rank_goes_on_from_the_time_that_was_trained(data, whole, tmp_path):
    """Before its first step nobody has told it another: with none a run by the clock would begin in its first phase."""
    config = runs.config(data, tmp_path / "run")
    pretraining = PretrainingData(ShardSet.open(data), config.samples)
    loop = PretrainLoop(config, build_model(config, pretraining), pretraining, None, tmp_path, None)
    source = whole / "checkpoints" / f"step_{STEPS}"
    loop.checkpoints.restore(source)
    loop.engine.world = World(1, 2)
    assert loop.seconds == checkpoint.load(source)[1]["seconds"] > 0


def test_a_resume_says_which_options_are_others(data, tmp_path, capsys):
    out = tmp_path / "run"
    pretrain(runs.config(data, out, steps=1, lr=1e-3), quiet=True)
    others = runs.config(data, out, steps=2, seed=4, precision="bf16", keep=1, resume="auto")
    pretrain(others)
    said = capsys.readouterr().out
    assert "other options than before: steps 2 (1 before), lr 0.002 (0.001 before), precision bf16 (fp32" in said
    assert "before), seed 4 (3 before)\n" in said
    pretrain(others)
    assert "other options" not in capsys.readouterr().out


@pytest.mark.skipif(not levels.LEVELS, reason="needs the C++ kernels")
@pytest.mark.parametrize(("before", "then"), [(1, 3), (3, 1)])
def test_epochs_are_as_many_when_steps_become_larger_or_smaller(data, tmp_path, before, then):
    """On another number of ranks they do. The run, and the learning rate, went by the number of steps."""
    options = {"steps": None, "epochs": 3.0, "model": "1x16x1", "eval_every": 1000, "schedule": "linear"}
    alone = pretrain(runs.config(data, tmp_path / "alone", accumulate=1, **options), quiet=True)
    first = runs.config(data, tmp_path / "cut", accumulate=before, **options)
    pretrain(first, callbacks=[runs.stop_after(18 // before)], quiet=True)
    result = pretrain(runs.config(data, tmp_path / "cut", accumulate=then, resume="auto", **options), quiet=True)
    assert result.interrupted is None
    _, state = runs.checkpoint_of(tmp_path / "cut", result.steps)
    assert abs(state["micro_step"] - alone.steps) < 3, "whole steps"
    # Of whole steps of the new size, 18 micro-batches are done.
    done = 18 / (round(alone.steps / then) * then)
    rates = {row["step"]: row["lr"] for row in result.history if row["kind"] == "train"}
    assert rates[18 // before + 1] == pytest.approx(first.lr * (1 - done) / (1 - first.warmup))


@pytest.mark.parametrize("steps", [6, 4])
def test_a_resume_of_a_run_that_has_ended_says_that_nothing_is_left(data, tmp_path, capsys, steps):
    """Its last lines are those of a run that was trained just now."""
    pretrain(runs.config(data, tmp_path / "run", steps=6))
    assert "nothing is left" not in capsys.readouterr().out
    again = pretrain(runs.config(data, tmp_path / "run", steps=steps, resume="auto"))
    assert "nothing is left to train: the run has its 6 steps" in capsys.readouterr().out
    assert again.steps == 6
    pretrain(runs.config(data, tmp_path / "run", steps=8, resume="auto"))
    assert "nothing is left" not in capsys.readouterr().out


def test_a_resume_says_what_computes_otherwise(data, tmp_path, caplog, monkeypatch):
    """In one line, and only where something does."""
    monkeypatch.delenv("FASTBERT_BACKEND", raising=False)
    out, before, count = tmp_path / "run", _native.isa(), torch.get_num_threads()
    pretrain(runs.config(data, out, steps=1), quiet=True)
    pretrain(runs.config(data, out, steps=2, resume="auto", async_save=True), quiet=True)
    assert not caplog.records
    with levels.at_level("scalar"), levels.threads(count + 1), fastbert.backend("reference"):
        pretrain(runs.config(data, out, steps=3, resume="auto", async_save=True), quiet=True)
    others = f"backend reference (auto before), kernels scalar ({before} before), threads {count + 1} ({count} before)"
    said = "continues under other conditions, so its bits will differ from those of an uninterrupted run"
    assert [record.message for record in caplog.records] == [f"{out}/checkpoints/step_2 {said}: {others}"]


def test_a_directory_that_holds_another_run_takes_no_checkpoint_from_elsewhere(data, whole, tmp_path):
    pretrain(runs.config(data, tmp_path / "run", steps=2), quiet=True)
    path = whole / "checkpoints" / f"step_{STEPS}"
    with pytest.raises(InputError, match=r"already holds a run, of which .* is no checkpoint"):
        pretrain(runs.config(data, tmp_path / "run", resume=str(path)), quiet=True)


def test_a_signal_ends_an_evaluation_and_the_resumed_run_makes_it_up(data, whole, tmp_path, monkeypatch):
    """Evaluations may take minutes; who asked to stop waits for a batch of one at most."""
    out, batches = tmp_path / "run", []
    plain = evaluation._add

    def add(*arguments):
        batches.append(1)
        if len(batches) == 2:
            signal.raise_signal(signal.SIGTERM)
        plain(*arguments)

    monkeypatch.setattr(evaluation, "_add", add)
    monkeypatch.setattr(evaluation, "_places", lambda data, *_: [(0, ids) for ids in data.batches(0, 256)])
    first = pretrain(runs.config(data, out), quiet=True)
    assert (first.steps, first.interrupted, len(batches)) == (8, "SIGTERM", 2)
    assert not [row for row in first.history if row["kind"] == "heldout"]
    monkeypatch.undo()
    shutil.copytree(out / "checkpoints", tmp_path / "stopped")
    pretrain(runs.config(data, out, resume="auto"), quiet=True)
    assert runs.rows(out) == runs.rows(whole)
    # The same from the same checkpoint, as if the run had been killed after it had made the evaluation up.
    shutil.rmtree(out / "checkpoints")
    (tmp_path / "stopped").rename(out / "checkpoints")
    pretrain(runs.config(data, out, resume="auto"), quiet=True)
    assert runs.rows(out) == runs.rows(whole)


def test_the_best_model_of_the_first_part_is_kept(data, tmp_path):
    """The second part, at a rate that destroys the model, never comes near the first one's held-out loss."""
    out = tmp_path / "run"
    config = runs.config(data, out)
    first = pretrain(config, callbacks=[runs.stop_after(20)], quiet=True)
    weights = (out / "model" / "model.safetensors").read_bytes()
    worse = dataclasses.replace(config, steps=26, resume="auto", lr=1.0, schedule="constant")
    second = pretrain(worse, quiet=True)
    assert second.steps == 26
    assert second.heldout == first.heldout
    assert max(row["mlm_loss"] for row in runs.rows(out) if row["kind"] == "heldout") > first.heldout["mlm_loss"]
    assert (out / "model" / "model.safetensors").read_bytes() == weights


@pytest.mark.parametrize(("num_workers", "kills"), [(0, 4), pytest.param(2, 4, marks=pytest.mark.slow)])
def test_killed_at_any_moment_the_run_goes_on(data, whole, tmp_path, monkeypatch, num_workers, kills):
    """kill -9, in training or inside a save, costs at most one interval between checkpoints and changes no figure."""
    out, interval = tmp_path / "run", 3
    monkeypatch.chdir(tmp_path)
    for name, value in runs.environment().items():
        monkeypatch.setenv(name, value)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_SLOW_IMPORTS)
    config = runs.config(data, out, save_every=interval, num_workers=num_workers, resume="auto")
    draw = random.Random(num_workers)

    for _ in range(kills):
        # Far enough from the end to be killed before it, and with every kill some way nearer to it.
        goal = min(runs.last_step(out) + interval, 34)
        child = context.Process(target=runs.pretrain_in_child, args=(config,))
        child.start()
        while runs.last_step(out) < goal and child.is_alive():
            time.sleep(0.01)
        time.sleep(draw.uniform(0, 0.1))
        child.kill()
        child.join()
        assert child.exitcode == -signal.SIGKILL
        newest, skipped = checkpoint.latest_valid(out / "checkpoints")
        assert not skipped, "a checkpoint under its final name is whole"
        assert (int(newest.name.removeprefix("step_")) if newest else 0) >= runs.last_step(out) - interval
    (out / ".tmp-0123456789ab-deepspeed.json").write_text("half")  # of a start that was killed
    child = context.Process(target=runs.pretrain_in_child, args=(config,))
    child.start()
    child.join(120)
    assert child.exitcode == 0
    runs.assert_same_run(out, whole, STEPS)
    assert not [path for path in out.rglob("*") if "tmp-" in path.name]


def test_a_crash_between_the_renames_of_the_best_model(data, whole, tmp_path):
    """The best model stood aside and the new one was not yet in its place."""
    out = tmp_path / "run"
    pretrain(runs.config(data, out), callbacks=[runs.stop_after(20)], quiet=True)
    (out / "model").rename(out / "model.old")
    pretrain(runs.config(data, out, resume="auto"), quiet=True)
    runs.assert_same_run(out, whole, STEPS)


def test_equality_means_something(data, whole, tmp_path):
    """Two runs that differ by their seed differ in all that `assert_same_run` compares."""
    out = tmp_path / "run"
    pretrain(runs.config(data, out, seed=4), quiet=True)
    with pytest.raises(AssertionError, match="tensors differ"):
        runs.assert_same_run(out, whole, STEPS)


def test_saved_moments_are_those_of_the_optimiser(whole):
    """After 40 steps on every parameter there are two moments each, and the second is nowhere negative."""
    tensors, state = runs.checkpoint_of(whole, STEPS)
    names = {name.removeprefix("model.") for name in tensors if name.startswith("model.")}
    for moment in ("exp_avg", "exp_avg_sq"):
        prefix = f"optimizer.{moment}."
        assert {name.removeprefix(prefix) for name in tensors if name.startswith(prefix)} == names
        assert all(bool(tensors[prefix + name].abs().max() > 0) for name in names if "token_type" not in name)
    assert (state["step"], state["micro_step"]) == (STEPS, 2 * STEPS)
    assert all(bool((tensors[f"optimizer.exp_avg_sq.{name}"] >= 0).all()) for name in names)


def test_two_runs_in_one_directory_are_refused(tmp_path, monkeypatch):
    """The second by another process, and only while the first is at work; what that one has is not even read."""
    held = tmp_path / "run"
    held.mkdir()
    data = runs.prepare_data(tmp_path / "data")
    with runs.another_run_in(held) as other:
        with pytest.raises(InputError, match=f"no other run in this directory, got one by process {other}"):
            pretrain(runs.config(data, held, steps=1), quiet=True)
        with monkeypatch.context() as patch:
            patch.setattr(checkpoint, "newest", lambda directory: pytest.fail(f"{directory} was read"))
            with pytest.raises(InputError, match=f"got one by process {other}"):
                pretrain(runs.config(data, held, steps=1, resume="auto"), quiet=True)
    pretrain(runs.config(data, held, steps=1), quiet=True)
    assert not (held / "run.lock").exists()
