"""A fine-tuning that was stopped or killed comes to the same bits as one that was left alone."""

from __future__ import annotations

import dataclasses
import multiprocessing
import random
import signal
import time
from pathlib import Path

import finetune_runs as runs
import pretraining_runs
import pytest
import rank_runs
import torch
from tiny_bert import rows_of

from fastbert import files
from fastbert.cli.main import main
from fastbert.tasks import base, predict, registry, results
from fastbert.tasks.config import SearchConfig
from fastbert.tasks.finetune import Callbacks
from fastbert.train import checkpoint, distributed

pytestmark = pytest.mark.usefixtures("hangups_arrive")


_TEXTS = {"squad2": runs.squad_of, "swag": runs.swag_of, "ner": runs.conll_of, "stsb": runs.stsb_of}
# Each task in one precision, each precision with two: what makes a step narrow is no part of a task. The others: slow.
_NARROW = {"bf16": ("ner", "stsb"), "fp16": ("squad2", "swag")}


@pytest.mark.parametrize(
    ("step", "number"),
    [
        (1, signal.SIGTERM),
        (3, signal.SIGTERM),
        (8, signal.SIGTERM),
        (13, signal.SIGTERM),
        (13, signal.SIGINT),
        (13, signal.SIGHUP),
        (runs.STEPS, signal.SIGTERM),
    ],
)
def test_stopped_it_goes_on_to_the_same_bits(directory, whole, tmp_path, step, number):
    """At the first step, at the early check, at an epoch's last step, inside one, at the very last."""
    out = tmp_path / "run"
    first, _ = runs.run(directory, out, callbacks=runs.stop_after(step, number))
    assert first.interrupted == number.name
    assert first.paths == [out / "checkpoints" / f"step_{step}"]
    assert (first.predictions, first.model_dir) == ([], None)
    saved = checkpoint.load(first.paths[0])[1]["progress"]["wall_seconds"]
    told = []
    second, model = runs.run(
        directory, out, resume="auto", callbacks=Callbacks(on_resume=lambda *given: told.append(given))
    )
    assert told == [(first.paths[0], step)]
    assert second.interrupted is None
    runs.assert_same_run(out, whole[0])
    expected = whole[1]
    for name in ("history", "best", "predictions", "guess"):
        assert runs.plain(getattr(second, name)) == runs.plain(getattr(expected, name)), name
    # Not what the first took after its checkpoint: at the last step that can be longer than all that is left to do.
    assert first.wall_seconds > saved > 0
    assert second.wall_seconds > saved
    assert [path.name for path in second.paths] == [path.name for path in expected.paths]
    written = registry.get("sst2").model(out / "model").state_dict()
    assert all(torch.equal(value, written[name]) for name, value in model.state_dict().items())


@pytest.fixture(params=[signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda number: number.name)
def amid_the_results(request, monkeypatch):
    """A signal that comes while the results are written; in place of ending the tests it is noted in ``arrived``."""
    number, arrived, plain = request.param, [], results.write_results

    def write(*given):
        signal.raise_signal(number)
        return plain(*given)

    monkeypatch.setattr("fastbert.tasks.runs.write_results", write)
    before = signal.signal(number, lambda *_: arrived.append(number))
    yield number, arrived
    signal.signal(number, before)


def test_a_signal_amid_the_results_does_not_end_their_writing(directory, whole, tmp_path, amid_the_results):
    """No checkpoint is due in so short a run: without its results it would be lost."""
    number, arrived = amid_the_results
    result, _ = runs.run(directory, tmp_path / "run")
    assert (result.interrupted, result.late_signal, arrived) == (None, number.name, [])
    runs.assert_same_run(tmp_path / "run", whole[0])


def test_nor_does_it_in_a_search(directory, tmp_path, amid_the_results):
    number, arrived = amid_the_results
    configs = SearchConfig(restarts=2).trials(runs.config(epochs=1))
    result, _ = runs.several(directory, tmp_path / "run", configs=configs)
    assert (result.interrupted, result.late_signal, arrived) == (None, number.name, [])
    assert (tmp_path / "run" / "ended.json").exists()


def test_the_time_of_a_training_goes_on(directory, tmp_path):
    out, taken = tmp_path / "run", []
    for steps, resume in ((13, None), (1, "auto")):
        stopped, _ = runs.run(directory, out, callbacks=runs.stop_after(steps), resume=resume)
        taken.append(checkpoint.load(stopped.paths[0])[1]["training"]["wall_seconds"])
    assert 0 < taken[0] < taken[1]


def test_equality_means_something(directory, whole, tmp_path):
    runs.run(directory, tmp_path / "run", seed=1)
    with pytest.raises(AssertionError):
        runs.assert_same_run(tmp_path / "run", whole[0])


@pytest.mark.parametrize("which", [1, 2, 3], ids=["early", "first-epoch", "second-epoch"])
def test_a_signal_ends_an_evaluation_and_the_resumed_run_makes_it_up(directory, tmp_path, monkeypatch, which):
    out, calls, plain_batches = tmp_path / "run", [], predict.evaluation_batches

    def batches(lengths, budget):
        calls.append(1)
        for number, indices in enumerate(plain_batches(lengths, 64)):
            if len(calls) == 3 + which and number == 1:
                signal.raise_signal(signal.SIGTERM)
            yield indices

    monkeypatch.setattr(predict, "evaluation_batches", batches)
    whole = tmp_path / "whole"
    runs.run(directory, whole, epochs=2)
    first, _ = runs.run(directory, out, epochs=2)
    assert first.paths[0].name == f"step_{ {1: 3, 2: 8, 3: 16}[which] }"
    rows = [row["kind"] for row in runs.read(out / "metrics.jsonl") if row["kind"] != "train"]
    assert rows == ["early", "dev"][: which - 1]
    runs.assert_goes_on_twice(directory, out, whole, epochs=2)


@pytest.mark.parametrize(
    ("name", "text", "prepare"),
    [
        ("squad2", runs.squad_of, {}),
        ("swag", runs.swag_of, {}),
        ("ner", runs.conll_of, {}),
        ("ner", runs.conll_of, {"features": "last", "feature_units": 8}),
        ("ner", runs.conll_of, {"features": "mix", "feature_units": 8}),
        ("stsb", runs.stsb_of, {}),
        ("stsb", runs.stsb_of, {"bilstm": 8}),
        *(
            pytest.param(name, text, {"precision": precision}, marks=[pytest.mark.slow] * (name not in names))
            for precision, names in _NARROW.items()
            for name, text in _TEXTS.items()
        ),
        ("ner", runs.conll_of, {"features": "mix", "feature_units": 8, "precision": "bf16"}),
        ("stsb", runs.stsb_of, {"bilstm": 8, "precision": "bf16"}),
    ],
    ids=[
        *("squad2", "swag", "ner", "ner-features", "ner-mix", "stsb", "stsb-bilstm"),
        *(f"{name}-{precision}" for precision in _NARROW for name in _TEXTS),
        *("ner-mix-bf16", "stsb-bilstm-bf16"),
    ],
)
def test_of_every_task(directory, tmp_path, name, text, prepare):
    """Heads, labels, thresholds and predictions of all kinds come through a checkpoint, or are made again."""
    parts = []
    for part, count in (("train", 40), ("dev", 20)):
        (tmp_path / part).write_text(text(count, len(part)))
        parts.append(registry.get(name).read(tmp_path / part))

    def setting(task: base.Task) -> None:
        for key, value in prepare.items():
            if key != "precision":
                setattr(task, key, value)

    options = {"rows": tuple(parts), "name": name, "prepare": setting, "bilstm": prepare.get("bilstm"), "epochs": 2}
    options["precision"] = prepare.get("precision", "fp32")
    expected, _ = runs.run(directory, tmp_path / "whole", **options)
    if options["precision"] != "fp32":
        runs.run(directory, tmp_path / "fp32", **{**options, "precision": "fp32", "epochs": 1})
        losses = [runs.read(tmp_path / run / "metrics.jsonl")[0]["loss"] for run in ("whole", "fp32")]
        assert 0 < abs(losses[0] - losses[1]) < 0.02 * losses[1]
    # In the second epoch, so that the best may be the first's.
    out = tmp_path / "run"
    assert runs.run(directory, out, callbacks=runs.stop_after(7), **options)[0].interrupted == "SIGTERM"
    got, _ = runs.run(directory, out, resume="auto", **options)
    runs.assert_same_run(out, tmp_path / "whole")
    for field in ("history", "best", "predictions"):
        assert runs.plain(getattr(got, field)) == runs.plain(getattr(expected, field)), field


def test_trainings_that_have_ended_are_not_made_again(directory, tmp_path):
    """Four trainings of 16 or 24 steps, stopped in the second, at its end and in the fourth."""
    grid = {"restarts": 2, "grid": True, "grid_batch_sizes": (8,), "grid_lrs": (2e-3,), "grid_epochs": (2, 3)}
    configs = SearchConfig(**grid).trials(runs.config())
    expected, model = runs.several(directory, tmp_path / "whole", configs=configs)
    out, again = tmp_path / "run", [dataclasses.replace(c, resume="auto") for c in configs]
    seen, steps = [], []
    for begin, step, ended in ((0, 20, 1), (20, 12, 1), (32, 33, 3)):
        callbacks = runs.stop_after(step)
        first, _ = runs.several(
            directory, out, configs=again, callbacks=callbacks, on_trial=lambda line: seen.append(line)
        )
        assert (first.interrupted, first.paths[0].name) == ("SIGTERM", f"step_{begin + step}")
        assert [line["trial"] for line in first.trials] == list(range(1, ended + 1))
    callbacks = Callbacks(on_step=lambda total: steps.append(total))
    result, found = runs.several(directory, out, configs=again, callbacks=callbacks, on_trial=seen.append)
    assert steps == [80] * 15
    assert [line["trial"] for line in seen] == [1, 2, 3, 4]
    runs.assert_same_run(out, tmp_path / "whole")
    assert runs.plain(result.trials) == runs.plain(expected.trials)
    assert (runs.plain(result.best), result.predictions) == (runs.plain(expected.best), expected.predictions)
    assert all(torch.equal(value, found.state_dict()[name]) for name, value in model.state_dict().items())


def test_a_training_that_has_ended_is_on_the_disk_at_once(directory, tmp_path):
    """No interval is over, and still it is not made again; nor is one that has diverged."""
    configs = SearchConfig(restarts=3).trials(runs.config(epochs=1))
    configs[0] = dataclasses.replace(configs[0], lr=1e12)
    out = tmp_path / "run"

    def on_trial(line: dict) -> None:
        if line["trial"] == 2:
            raise KeyboardInterrupt  # in place of the end of the process

    with pytest.raises(KeyboardInterrupt):
        runs.several(directory, out, configs=configs, on_trial=on_trial)
    lines = runs.read(out / "trials.jsonl")
    assert "failed" in lines[0]
    seen, again = [], [dataclasses.replace(c, resume="auto") for c in configs]
    result, _ = runs.several(directory, out, configs=again, on_trial=lambda line: seen.append(line["trial"]))
    assert seen == [3]
    assert runs.plain(result.trials)[:2] == lines
    runs.several(directory, tmp_path / "whole", configs=configs)
    runs.assert_same_run(out, tmp_path / "whole")


COMMAND = ["finetune", "sst2", "--resume", "auto", "--save-every", "2"]


@pytest.mark.parametrize("restarts", [1, 2])
def test_the_command_is_killed_and_goes_on(directory, tmp_path, monkeypatch, restarts):
    """kill -9 of the command at moments drawn by chance, in training and in saves.

    In processes that find torch imported: by itself that takes as long as all the training here.
    """
    for name, count, seed in (("train", 320, 1), ("dev", 40, 2)):
        lines = [f"{row.texts[0]} \t{row.label}\n" for row in rows_of(count, seed)]
        (tmp_path / f"{name}.tsv").write_text("sentence\tlabel\n" + "".join(lines))
    given = ["--model", str(directory), "--train", f"{tmp_path}/train.tsv", "--dev", f"{tmp_path}/dev.tsv"]
    given += [
        "--max-seqlen",
        "24",
        "--batch-size",
        "8",
        "--lr",
        "2e-3",
        "--restarts",
        str(restarts),
        "--log-every",
        "1",
    ]
    given += ["--epochs", "3" if restarts == 1 else "2"]
    assert main(["finetune", "sst2", *given, "--out", str(tmp_path / "whole")]) == 0
    out, draw = tmp_path / "run", random.Random(restarts)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["finetune_runs", "fastbert.cli.finetune", "torch.utils.tensorboard"])
    for name, value in pretraining_runs.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)

    def start() -> multiprocessing.process.BaseProcess:
        process = context.Process(
            target=runs.command_in_child, args=([*COMMAND, *given, "--out", str(out)], tmp_path / "told")
        )
        process.start()
        return process

    # In either training of two, and where one ends; once of a training alone. After the last there are steps enough
    # that a machine with other work kills it before it ends.
    for goal in (60,) if restarts == 1 else (26, 80, 100):
        child = start()
        deadline = time.monotonic() + 120
        while _newest(out) < goal:
            assert child.is_alive(), (tmp_path / "told").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.005)
        time.sleep(draw.uniform(0, 0.05))
        child.kill()
        child.join()
        assert child.exitcode == -signal.SIGKILL
        newest, skipped = checkpoint.latest_valid(out / "checkpoints")
        assert not skipped, "a checkpoint under its final name is whole"
        assert int(newest.name.removeprefix("step_")) >= goal
    child = start()
    child.join()
    told = (tmp_path / "told").read_text()
    assert child.exitcode == 0, told
    assert "resumed from" in told
    runs.assert_same_run(out, tmp_path / "whole")
    # The same command once more: a machine that was taken away asks for nothing else.
    assert main([*COMMAND, *given, "--out", str(out)]) == 0
    runs.assert_same_run(out, tmp_path / "whole")


def _newest(out: Path) -> int:
    names = [p.name.removeprefix("step_") for p in out.glob("checkpoints/step_*")]
    return max((int(name) for name in names if name.isdigit()), default=0)


def test_the_command_says_how_to_go_on(directory, tmp_path, capsys, monkeypatch):
    lines = [f"{row.texts[0]} \t{row.label}\n" for row in rows_of(64, 1)]
    (tmp_path / "d.tsv").write_text("sentence\tlabel\n" + "".join(lines))
    out = tmp_path / "run"
    given = [
        "finetune",
        "sst2",
        "--model",
        str(directory),
        "--train",
        f"{tmp_path}/d.tsv",
        "--dev",
        f"{tmp_path}/d.tsv",
    ]
    given += ["--out", str(out), "--max-seqlen", "24", "--batch-size", "8"]
    collate, calls = base.Task.collate, []

    def collated(*arguments):
        calls.append(1)
        if len(calls) == 12:
            signal.raise_signal(signal.SIGINT)
        return collate(*arguments)

    monkeypatch.setattr(base.Task, "collate", collated)
    assert main(given) == 0
    told = capsys.readouterr().out
    assert "stopped by SIGINT; go on with --resume auto\n" in told
    newest = checkpoint.newest(out / "checkpoints")
    assert told.splitlines()[-1] == str(newest)
    assert not (out / "model").exists()
    assert main(given) == 2
    assert (
        f"{out} already holds a run: resume it with --resume auto, or choose another --out" in capsys.readouterr().err
    )
    assert main([*given, "--resume", "auto"]) == 0
    assert f"resumed from {newest} at step " in capsys.readouterr().out
    assert main([*given, "--resume", "auto", "--lr", "1e-3"]) == 2
    assert "expected the lr that it was trained with, 2e-05, got 0.001; go on with" in capsys.readouterr().err
    assert main([*given, "--resume", "maybe"]) == 2


def test_all_features_go_on(directory, tmp_path, capsys, monkeypatch):
    """Of the trainings of --features all those that have ended are not made again; what a killed one left goes."""
    (tmp_path / "d.txt").write_text(runs.conll_of(24, 1))
    out = tmp_path / "run"
    given = ["finetune", "ner", "--model", str(directory), "--train", f"{tmp_path}/d.txt", "--dev", f"{tmp_path}/d.txt"]
    given += ["--features", "all", "--feature-units", "8", "--max-seqlen", "24", "--epochs", "1", "--batch-size", "8"]
    from fastbert.tasks.training import Training

    step, steps = Training._step, []

    def stepped(self, indices):
        steps.append(1)
        if len(steps) in (1, 4):
            time.sleep(1)
        if len(steps) == 5:
            signal.raise_signal(signal.SIGTERM)
        step(self, indices)

    monkeypatch.setattr(Training, "_step", stepped)
    assert main([*given, "--out", str(out)]) == 0
    assert "stopped by SIGTERM" in capsys.readouterr().out
    assert sorted(p.name for p in out.iterdir()) == ["embeddings", "second-to-last"]
    left, lives = (out / f".second-to-last.features-{name}" for name in ("abc", "def"))
    left.mkdir()
    lives.mkdir()
    monkeypatch.setattr(files, "_YOUNG_SECONDS", 0.0)
    with files.held(lives):  # by the same command, started twice
        assert main([*given, "--out", str(out), "--resume", "auto"]) == 0
        assert lives.exists()
    assert len(steps) == 6 * 3 + 9
    assert not left.exists()
    # Those of the training that had ended, and of the one that went on, count from their beginning.
    seconds = [float(line.split("\t")[-1]) for line in (out / "features.tsv").read_text().splitlines()[1:]]
    assert [second >= 1 for second in seconds[:2]] == [True, True]
    steps[:] = [0] * 10
    assert main([*given, "--out", str(tmp_path / "whole")]) == 0
    table = [
        [line.split("\t")[:4] for line in (d / "features.tsv").read_text().splitlines()]
        for d in (out, tmp_path / "whole")
    ]
    assert table[0] == table[1]


def test_a_signal_in_the_last_save_of_one_of_all_features_is_for_all(directory, tmp_path, capsys, monkeypatch):
    """Nothing is left of that training to stop."""
    (tmp_path / "d.txt").write_text(runs.conll_of(8, 1))
    out, save = tmp_path / "run", checkpoint.save
    given = ["finetune", "ner", "--model", str(directory), "--train", f"{tmp_path}/d.txt", "--dev", f"{tmp_path}/d.txt"]
    given += ["--features", "all", "--feature-units", "8", "--max-seqlen", "24", "--epochs", "1", "--batch-size", "8"]

    def told(*arguments, **options):
        signal.raise_signal(signal.SIGTERM)
        return save(*arguments, **options)

    monkeypatch.setattr(checkpoint, "save", told)
    assert main([*given, "--save-every", "1", "--out", str(out)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "stopped by SIGTERM; go on with --resume auto"
    assert [path.name for path in out.iterdir()] == ["embeddings"]
    assert (out / "embeddings" / "model").is_dir()


def test_without_a_run_directory_signals_are_the_callers(directory):
    with pytest.raises(KeyboardInterrupt):
        runs.run(directory, None, callbacks=runs.stop_after(2, signal.SIGINT))


def _two_parts(directory, out) -> list:
    """In one of two processes: stopped by a signal to the second, and gone on with."""
    with distributed.joined() as world:
        callbacks = None if world.first else runs.stop_after(5)
        first, _ = runs.run(directory, out, callbacks=callbacks)
        distributed.barrier(world)
        second, model = runs.run(directory, out, resume="auto")
    return [first.interrupted is not None, second.history, {n: v.numpy() for n, v in model.state_dict().items()}]


def _one_part(directory, out) -> list:
    with distributed.joined():
        result, model = runs.run(directory, out)
    return [False, result.history, {n: v.numpy() for n, v in model.state_dict().items()}]


def _with_heads_of_their_own(directory, out) -> list:
    """In one of two processes, each of which draws another new head, as after ``manual_seed(seed + rank)``."""

    def prepare(task):
        make = task.model
        task.model = lambda path: torch.manual_seed(world.rank) and make(path)

    with distributed.joined() as world:
        first, _ = runs.run(directory, out, prepare=prepare, callbacks=runs.stop_after(5) if world.first else None)
        distributed.barrier(world)
        second, _ = runs.run(directory, out, prepare=prepare, resume="auto")
        again, _ = runs.run(directory, out, prepare=prepare, resume="auto")
    return [first.interrupted is not None, len(second.history), len(again.history)]


def test_two_processes_with_heads_of_their_own_go_on(directory, tmp_path):
    told = rank_runs.launch(_with_heads_of_their_own, 2, tmp_path, directory, tmp_path / "run", seconds=60.0)
    assert told == [[True, 3, 3]] * 2


def test_two_processes_stop_together_and_go_on(directory, tmp_path):
    parts = rank_runs.launch(_two_parts, 2, tmp_path, directory, tmp_path / "parts")
    wholes = rank_runs.launch(_one_part, 2, tmp_path, directory, tmp_path / "whole")
    for part, alone in zip(parts, wholes, strict=True):
        assert part[0]
        assert runs.plain(part[1]) == runs.plain(alone[1])
        assert all((part[2][name] == value).all() for name, value in alone[2].items())
    runs.assert_same_run(tmp_path / "parts", tmp_path / "whole")
