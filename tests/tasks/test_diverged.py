"""A training that diverges after an evaluation ends there, and its best evaluation is kept."""

from __future__ import annotations

import json
import math

import finetune_runs as runs
import pytest
import torch
import yaml
from tiny_bert import rows_of

import fastbert
from fastbert.cli.main import main
from fastbert.tasks import registry
from fastbert.tasks.config import SearchConfig
from fastbert.tasks.predict import NotFiniteError
from fastbert.tasks.search import search
from fastbert.tasks.training import Training
from fastbert.train.engine import TrainingDiverged

REASON = "training stopped: the gradient was not finite in 5 steps in a row"
NO_NUMBERS = "task sst2: expected finite outputs of the model, got nan"


def broken_after(model, steps: int):
    """The model, whose gradients are NaN after so many steps."""
    done = []

    def hook(gradient):
        done.append(1)
        return gradient * math.nan if len(done) > steps else gradient

    model.classifier.weight.register_hook(hook)
    return model


def breaking(steps: int):
    def prepare(task):
        make = task.model
        task.model = lambda directory: broken_after(make(directory), steps)

    return prepare


def test_its_best_evaluation_is_kept(directory, whole, tmp_path, caplog):
    """In the third of three epochs of eight steps."""
    result, model = runs.run(directory, tmp_path / "run", prepare=breaking(18))
    assert runs.plain(result.history) == runs.plain(whole[1].history[:2])
    best = max(result.history, key=lambda record: record["accuracy"])
    assert (result.best, result.diverged) == (best, REASON)
    kept = f"{REASON}; the evaluation of epoch {best['epoch']}, the best so far, is kept"
    assert [record.getMessage() for record in caplog.records if "gradient" in record.getMessage()] == [kept]
    assert not (tmp_path / "run" / "checkpoints").exists()
    written = registry.get("sst2").model(tmp_path / "run" / "model").state_dict()
    assert all(torch.equal(value, written[name]) for name, value in model.state_dict().items())
    # It has ended, and gives its result again.
    again, _ = runs.run(directory, tmp_path / "run", resume="auto")
    for name in ("history", "best", "predictions", "diverged"):
        assert runs.plain(getattr(again, name)) == runs.plain(getattr(result, name)), name
    assert whole[1].diverged is None


def test_so_it_is_after_a_resume(directory, tmp_path):
    """Of an evaluation before the checkpoint."""
    first, _ = runs.run(directory, tmp_path / "run", callbacks=runs.stop_after(9))
    result, _ = runs.run(directory, tmp_path / "run", resume="auto", prepare=breaking(0))
    assert [record["epoch"] for record in result.history] == [1]
    assert runs.plain(result.best) == runs.plain(first.best)
    assert result.diverged == REASON


def test_without_an_evaluation_it_fails(directory, tmp_path):
    with pytest.raises(TrainingDiverged, match=f"^{REASON}; the parameters are those of the last good step$"):
        runs.run(directory, None, prepare=breaking(2))


def test_a_search_keeps_a_training_that_was_better_before(directory, tmp_path, monkeypatch):
    """Also if it is stopped in the next one, and goes on."""
    score = Training._score

    def scored(training, rows):
        found, predictions = score(training, rows)
        accuracy = 0.9 - 0.1 * training.stepper.config.seed - 0.01 * training._place.epoch
        return found | {"accuracy": accuracy}, predictions

    monkeypatch.setattr(Training, "_score", scored)

    def searched(out, callbacks=None, **changes):
        task = registry.get("sst2")
        configs = SearchConfig(restarts=2).trials(runs.config(**changes))
        torch.manual_seed(0)
        models = broken_after(task.model(directory), 18), lambda: task.model(directory)
        given = fastbert.load_tokenizer(directory), rows_of(64, 1), rows_of(40, 2), configs
        return search(task, *models, *given, out=out, callbacks=callbacks)[0]

    result = searched(tmp_path / "whole")
    first, second = result.trials
    assert (first["accuracy"], first["best_epoch"], first["diverged"]) == (pytest.approx(0.89), 1, REASON)
    assert not {"failed", "diverged"} & second.keys()
    assert (len(result.history), result.best["epoch"], result.diverged) == (2, 1, REASON)
    assert runs.read(tmp_path / "whole" / "trials.jsonl") == runs.plain(result.trials)
    assert yaml.safe_load((tmp_path / "whole" / "config.yaml").read_text())["seed"] == 0
    stopped = searched(tmp_path / "run", runs.stop_after(25))
    assert (stopped.interrupted, len(stopped.trials)) == ("SIGTERM", 1)
    for again in (searched(tmp_path / "run", resume="auto"), searched(tmp_path / "run", resume="auto")):
        assert again.diverged == REASON
        assert runs.plain(again.trials) == runs.plain(result.trials)
    runs.assert_same_run(tmp_path / "run", tmp_path / "whole")


@pytest.mark.parametrize("restarts", [1, 2])
def test_the_command_says_why_it_ended(directory, tmp_path, capsys, caplog, monkeypatch, restarts):
    """Of outputs that are no numbers, in the second evaluation of the first training."""
    score = Training._score

    def scored(training, rows):
        if training._place.epoch == 2 and training.stepper.config.seed == 0:
            raise NotFiniteError(f"{NO_NUMBERS}: its training has diverged")
        return score(training, rows)

    monkeypatch.setattr(Training, "_score", scored)
    data = tmp_path / "data.tsv"
    data.write_text("\n".join(["sentence\tlabel", *(f"{row.texts[0]}\t{row.label}" for row in rows_of(16, 1))]))
    given = ["--model", directory, "--train", data, "--dev", data, "--out", tmp_path / "run", "--max-seqlen", 24]
    command = list(map(str, ["finetune", "sst2", *given, "--epochs", 3, "--restarts", restarts]))
    assert main(command) == 0
    printed = capsys.readouterr().out
    reason = f"{NO_NUMBERS}: its training has diverged"
    assert f"{reason}; the evaluation of epoch 1, the best so far, is kept" in caplog.text
    if restarts == 1:
        ended = f"ended after epoch 1 of 3: {reason}\n"
        assert ended in printed
        assert main([*command, "--resume", "auto"]) == 0
        assert ended in capsys.readouterr().out
    else:
        first = json.loads((tmp_path / "run" / "trials.jsonl").read_text().splitlines()[0])
        then = f"accuracy {first['accuracy']:.4f} at epoch 1, then {reason}\n"
        assert f"3 epochs, seed 0: {then}" in printed
