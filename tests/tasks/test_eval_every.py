"""`--eval-every`: evaluations within an epoch, of which the best counts as one at an epoch's end does."""

from __future__ import annotations

import dataclasses
import importlib.util
import signal

import finetune_runs as runs
import pytest
import rank_runs
import torch
from tiny_bert import rows_of

from fastbert.cli.main import main
from fastbert.errors import CheckpointError
from fastbert.tasks import predict
from fastbert.tasks.config import SearchConfig
from fastbert.tasks.finetune import Callbacks
from fastbert.tasks.training import Training
from fastbert.train import checkpoint, distributed

pytestmark = pytest.mark.usefixtures("hangups_arrive")

DEEPSPEED = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None,
    reason="DeepSpeed is not installed (pip install 'fastbert[deepspeed]')",
)
STEPS = [3, 6, 8, 9, 12, 15, 16, 18, 21, 24]
"""When three epochs of 8 steps are evaluated, every third step and at the ends of epochs."""


@pytest.fixture(scope="module")
def often(directory, tmp_path_factory):
    """A run with evaluations within its epochs that was left alone; its directory, its result and its model."""
    out = tmp_path_factory.mktemp("often") / "run"
    return out, *runs.run(directory, out, eval_every=3)


def test_it_evaluates_every_so_many_steps_and_after_each_epoch(often):
    out, result, _ = often
    assert [record["step"] for record in result.history] == STEPS
    assert [record["epoch"] for record in result.history] == [step / 8 for step in STEPS]
    ends = [record["epoch"] for record in result.history if record["step"] % 8 == 0]
    assert [(epoch, type(epoch)) for epoch in ends] == [(1, int), (2, int), (3, int)]
    rows = runs.read(out / "metrics.jsonl")
    assert [row["step"] for row in rows if row["kind"] == "dev"] == STEPS
    assert len([row for row in rows if row["kind"] == "early"]) == 1


def test_the_steps_are_those_of_a_training_without_it(often, whole):
    losses = [
        [row["loss"] for row in runs.read(out / "metrics.jsonl") if row["kind"] == "train"]
        for out in (often[0], whole[0])
    ]
    assert losses[0] == losses[1]
    dev = {record["step"]: record["dev_loss"] for record in often[1].history}
    assert [dev[record["step"]] for record in whole[1].history] == [r["dev_loss"] for r in whole[1].history]


def test_the_figures_of_an_evaluation_are_of_the_steps_since_the_one_before(often, whole):
    losses = [row["loss"] for row in runs.read(often[0] / "metrics.jsonl") if row["kind"] == "train"]
    for record, before in zip(often[1].history, [0, *STEPS], strict=False):
        part = losses[before : record["step"]]
        assert record["train_loss"] == pytest.approx(sum(part) / len(part))
    tokens = [sum(r["tokens_per_second"] * r["train_seconds"] for r in run[1].history) for run in (often, whole)]
    assert tokens[0] == pytest.approx(tokens[1])


def scored(monkeypatch, scores: dict[int, float]) -> None:
    """The evaluation after so many steps has this accuracy; the early check has none of its own."""
    score = Training._score

    def of_step(training, rows):
        found, predictions = score(training, rows)
        return found | {"accuracy": scores.get(training.stepper.count, 0.1)}, predictions

    monkeypatch.setattr(Training, "_score", of_step)


def test_the_best_of_all_evaluations_is_kept(directory, monkeypatch):
    scored(monkeypatch, {3: 0.5, 12: 0.7, 16: 0.7})
    seen, weights = [], {}

    def keep(record):
        weights[record["step"]] = {name: value.clone() for name, value in seen[0].state_dict().items()}

    task, *given = _parts(directory)
    seen.append(given[0])
    result = runs.finetune(task, *given, runs.config(eval_every=3), callbacks=Callbacks(on_evaluation=keep))
    assert (result.best["step"], result.best["epoch"]) == (12, 1.5)
    assert all(torch.equal(value, weights[12][name]) for name, value in given[0].state_dict().items())
    assert not torch.equal(weights[12]["classifier.weight"], weights[16]["classifier.weight"])


def _parts(directory):
    task = runs.registry.get("sst2")
    torch.manual_seed(0)
    return task, task.model(directory), runs.fastbert.load_tokenizer(directory), rows_of(64, 1), rows_of(40, 2)


@pytest.mark.parametrize(("patience", "last"), [(1, 9), (2, 12), (6, 21), (7, 24)])
def test_patience_counts_evaluations(directory, monkeypatch, patience, last):
    scored(monkeypatch, {3: 0.5, 6: 0.6, 8: 0.7, 24: 0.8})
    result, _ = runs.run(directory, None, eval_every=3, patience=patience)
    assert [record["step"] for record in result.history] == STEPS[: STEPS.index(last) + 1]


@pytest.mark.parametrize("step", [2, 3, 5, 6, 8, 9, 13, 24])
def test_stopped_it_goes_on_to_the_same_bits(directory, often, tmp_path, step):
    """Before the first evaluation, in the step before one (of an epoch, with the early check), and between two."""
    out = tmp_path / "run"
    first, _ = runs.run(directory, out, callbacks=runs.stop_after(step), eval_every=3)
    assert first.paths == [out / "checkpoints" / f"step_{step}"]
    second, model = runs.run(directory, out, resume="auto", eval_every=3)
    _same(out, second, model, often)


def _same(out, result, model, often) -> None:
    runs.assert_same_run(out, often[0])
    for name in ("history", "best", "predictions"):
        assert runs.plain(getattr(result, name)) == runs.plain(getattr(often[1], name)), name
    expected = often[2].state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in model.state_dict().items())


class Killed(Exception):
    """In place of the end of the process."""


@pytest.mark.parametrize("after", [6, 9, 16, 18])
@pytest.mark.parametrize("saved", [True, False], ids=["saved", "not-yet-saved"])
def test_killed_right_after_an_evaluation_it_goes_on_to_the_same_bits(directory, often, tmp_path, after, saved):
    """In the next step, when the checkpoint of this evaluation is written, or just before it is."""

    def on_evaluation(record):
        if record["step"] == after and not saved:
            raise Killed

    def on_step(_total):
        done.append(1)
        if len(done) == after + 1 and saved:
            raise Killed

    out, done = tmp_path / "run", []
    callbacks = Callbacks(on_step=on_step, on_evaluation=on_evaluation)
    with pytest.raises(Killed):
        runs.run(directory, out, callbacks=callbacks, eval_every=3, save_every=1)
    rows = [row for row in runs.read(out / "metrics.jsonl") if row["kind"] == "dev"]
    assert rows[-1]["step"] == after
    assert checkpoint.newest(out / "checkpoints").name == f"step_{after if saved else after - 1}"
    evaluations = []
    callbacks = Callbacks(on_evaluation=lambda record: evaluations.append(record["step"]))
    second, model = runs.run(directory, out, callbacks=callbacks, resume="auto", eval_every=3)
    assert evaluations == [step for step in STEPS if step > after or (step == after and not saved)]
    _same(out, second, model, often)


@pytest.mark.parametrize("which", [2, 4, 5], ids=["first", "end-of-epoch", "second-epoch"])
def test_a_signal_ends_an_evaluation_and_the_resumed_run_makes_it_up(directory, tmp_path, monkeypatch, which):
    """The second is the first on all dev rows, since the early check comes before it at the same step."""
    calls, plain_batches = [], predict.evaluation_batches

    def batches(lengths, budget):
        calls.append(1)
        for number, indices in enumerate(plain_batches(lengths, 64)):
            if len(calls) == len(STEPS) + 1 + which and number == 1:
                signal.raise_signal(signal.SIGTERM)
            yield indices

    monkeypatch.setattr(predict, "evaluation_batches", batches)
    whole, out = tmp_path / "whole", tmp_path / "run"
    runs.run(directory, whole, eval_every=3)
    first, _ = runs.run(directory, out, eval_every=3)
    assert first.paths[0].name == f"step_{STEPS[which - 2]}"
    assert [record["step"] for record in first.history] == STEPS[: which - 2]
    runs.assert_goes_on_twice(directory, out, whole, eval_every=3)


def test_the_time_that_is_left_is_that_of_the_steps_since_the_last_evaluation(directory, monkeypatch):
    """A second a step; the early check comes after three steps, of which two were before an evaluation."""
    step, told = Training._step, []

    def stepped(training, indices):
        step(training, indices)
        training._place.seconds = float(training._place.batch - training._place.evaluated)

    monkeypatch.setattr(Training, "_step", stepped)
    runs.run(directory, None, eval_every=2, callbacks=Callbacks(on_early=told.append))
    assert [(record["step"], record["seconds_left"]) for record in told] == [(3, 21.0)]


def test_a_search_goes_on_within_an_epoch(directory, tmp_path):
    grid = {"restarts": 2, "grid": True, "grid_batch_sizes": (8,), "grid_lrs": (2e-3,), "grid_epochs": (1, 2)}
    configs = SearchConfig(**grid).trials(runs.config(eval_every=3))
    expected, _ = runs.several(directory, tmp_path / "whole", configs=configs)
    assert [line["best_step"] in STEPS for line in expected.trials] == [True] * 4
    assert [line["best_epoch"] for line in expected.trials] == [line["best_step"] / 8 for line in expected.trials]
    out, again = tmp_path / "run", [dataclasses.replace(c, resume="auto") for c in configs]
    for step in (4, 9, 20):
        runs.several(directory, out, configs=again, callbacks=runs.stop_after(step))
    result, _ = runs.several(directory, out, configs=again)
    runs.assert_same_run(out, tmp_path / "whole")
    assert runs.plain(result.trials) == runs.plain(expected.trials)


def _stopped_between(directory, out, options) -> list:
    """In one of two processes: stopped between two evaluations by a signal to the second, and gone on with."""
    with distributed.joined(always=True) as world:
        if out.name == "parts":
            runs.run(directory, out, callbacks=None if world.first else runs.stop_after(5), eval_every=3, **options)
            distributed.barrier(world)
        result, model = runs.run(directory, out, resume="auto", eval_every=3, **options)
    return [runs.plain(result.history), {n: v.numpy() for n, v in model.state_dict().items()}]


@pytest.mark.parametrize(
    "options", [{}, pytest.param({"zero": 2}, marks=[DEEPSPEED, pytest.mark.slow])], ids=["ddp", "zero2"]
)
def test_two_processes_evaluate_together_and_go_on(directory, tmp_path, options):
    parts, wholes = (
        rank_runs.launch(_stopped_between, 2, tmp_path, directory, tmp_path / name, options)
        for name in ("parts", "whole")
    )
    for part, alone in zip(parts, wholes, strict=True):
        assert [record["step"] for record in part[0]] == STEPS
        assert part[0] == alone[0]
        assert all((part[1][name] == value).all() for name, value in alone[1].items())
    runs.assert_same_run(tmp_path / "parts", tmp_path / "whole")


def test_another_interval_is_another_run(directory, tmp_path):
    runs.run(directory, tmp_path / "run", callbacks=runs.stop_after(4), eval_every=3)
    with pytest.raises(CheckpointError, match="expected the eval_every that it was trained with, 3, got 4"):
        runs.run(directory, tmp_path / "run", resume="auto", eval_every=4)


def test_the_command_prints_every_evaluation(directory, tmp_path, capsys, monkeypatch):
    scored(monkeypatch, {3: 0.5})
    data = tmp_path / "data.tsv"
    data.write_text("\n".join(["sentence\tlabel", *(f"{row.texts[0]}\t{row.label}" for row in rows_of(64, 1))]))
    given = ["--model", directory, "--train", data, "--dev", data, "--out", tmp_path / "run", "--max-seqlen", 24]
    given += ["--batch-size", 8, "--eval-every", 3, "--patience", 3]
    assert main(list(map(str, ["finetune", "sst2", *given]))) == 0
    told = capsys.readouterr().out
    lines = [line.split("  ")[:2] for line in told.splitlines() if line.startswith("epoch ")]
    assert lines == [
        ["epoch 0.3750", "step 3"],
        ["epoch 0.7500", "step 6"],
        ["epoch 1", "step 8"],
        ["epoch 1.1250", "step 9"],
    ]
    assert "ended after epoch 1.1250 of 3: no better accuracy in 3 evaluations (--patience)" in told
    assert "\nbest epoch 0.3750: accuracy " in told
