"""`--patience`: a training ends when nothing better has come for so many epochs."""

from __future__ import annotations

import os

import finetune_runs as runs
import pytest
import rank_runs
from tiny_bert import rows_of

import fastbert
from fastbert.cli.main import main
from fastbert.tasks import registry
from fastbert.tasks.finetune import finetune
from fastbert.tasks.training import Training
from fastbert.train import distributed

SCORES = [0.5, 0.6, 0.55, 0.6, 0.4, 0.7, 0.1]
"""Of seven epochs: the second is the best one for four epochs, since one that is as good is no better."""


@pytest.fixture(autouse=True)
def scored(monkeypatch):
    """Each epoch has its accuracy of `SCORES`; those of another rank fall from the first one."""
    score = Training._score

    def of_epoch(training, rows):
        found, predictions = score(training, rows)
        scores = sorted(SCORES, reverse=True) if os.environ.get("RANK") == "1" else SCORES
        return found | {"accuracy": scores[training._place.epoch - 1]}, predictions

    monkeypatch.setattr(Training, "_score", of_epoch)


@pytest.mark.parametrize(("patience", "epochs", "best"), [(1, 3, 2), (3, 5, 2), (4, 7, 6), (6, 7, 6), (None, 7, 6)])
def test_it_ends_after_so_many_epochs_that_are_no_better(directory, tmp_path, patience, epochs, best):
    result, _ = runs.run(directory, tmp_path / "run", epochs=7, patience=patience)
    assert [record["epoch"] for record in result.history] == list(range(1, epochs + 1))
    assert result.best["epoch"] == best
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_the_epochs_are_those_of_a_training_without_it(directory, tmp_path):
    """The learning rate falls as if all epochs were to come."""
    losses = []
    for patience in (1, None):
        result, _ = runs.run(directory, tmp_path / f"{patience}", epochs=7, patience=patience)
        losses.append([record["train_loss"] for record in result.history])
    assert losses[0] == losses[1][:3]


@pytest.mark.parametrize("step", [12, 24, 32])
def test_a_resumed_training_ends_where_it_would_have_ended(directory, tmp_path, step):
    """Stopped within the second epoch of eight steps, at the end of the third, and in the last evaluation."""
    options = {"epochs": 7, "patience": 2}
    whole, _ = runs.run(directory, tmp_path / "whole", **options)
    first, _ = runs.run(directory, tmp_path / "run", callbacks=runs.stop_after(step), **options)
    assert first.interrupted == "SIGTERM"
    again, _ = runs.run(directory, tmp_path / "run", resume="auto", **options)
    assert len(again.history) == 4
    assert runs.plain(again.history) == runs.plain(whole.history)


def test_processes_end_together(directory, tmp_path):
    """Though the second one has other scores, of which the first is the best."""

    def work() -> int:
        task = registry.get("sst2")
        with distributed.joined():
            given = task.model(directory), fastbert.load_tokenizer(directory), rows_of(16, 1), rows_of(8, 2)
            return len(finetune(task, *given, runs.config(epochs=7, patience=3)).history)

    assert rank_runs.launch(work, 2, tmp_path) == [5, 5]


def test_the_command_says_why_it_ended(directory, tmp_path, capsys):
    data = tmp_path / "data.tsv"
    data.write_text("\n".join(["sentence\tlabel", *(f"{row.texts[0]}\t{row.label}" for row in rows_of(16, 1))]))
    given = ["--model", directory, "--train", data, "--dev", data, "--out", tmp_path / "run", "--max-seqlen", 24]
    command = list(map(str, ["finetune", "sst2", *given, "--epochs", 7, "--patience", 2]))
    said = "ended after epoch 4 of 7: no better accuracy in 2 epochs (--patience)"
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert said in printed
    assert "at most 7 epochs of batches" in printed
    assert main([*command, "--resume", "auto"]) == 0  # it is over, and its result is shown again
    assert said in capsys.readouterr().out
    assert main([*command[:-2], "--patience", "5", "--out", str(tmp_path / "whole")]) == 0
    assert "(--patience)" not in capsys.readouterr().out
