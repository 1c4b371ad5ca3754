"""`finetune --wandb`: the rows of metrics.jsonl also go to Weights & Biases."""

from __future__ import annotations

import sys
import types

import finetune_runs as runs
import pytest

from fastbert.cli.main import main
from fastbert.train.metrics import read_metrics


class Wandb(types.ModuleType):
    """As much of wandb as a run sees: a run is what `init` was given, and what it was sent."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.runs: list[tuple[dict, list]] = []

    def init(self, **options):
        sent: list[tuple[int, dict]] = []
        self.runs.append((options, sent))
        log = lambda values, step: sent.append((step, values))  # noqa: E731
        return types.SimpleNamespace(log=log, finish=lambda: sent.append("finished"))


@pytest.fixture
def wandb(monkeypatch):
    found = Wandb()
    monkeypatch.setitem(sys.modules, "wandb", found)
    return found


def numbers(path) -> list[tuple[int, dict]]:
    """The numbers in the rows of a metrics.jsonl, as they are sent."""
    rows = read_metrics(path)
    return [
        (row["step"], {f"{row['kind']}/{k}": v for k, v in row.items() if isinstance(v, int | float) and k != "step"})
        for row in rows
    ]


def test_a_run_and_what_goes_on_with_it_send_their_rows(directory, tmp_path, wandb):
    """The latter under the same id, and only what it computes itself."""
    out = tmp_path / "run"
    runs.run(directory, out, callbacks=runs.stop_after(8), wandb="project")
    runs.run(directory, out, resume="auto", wandb="project")
    (first, sent), (second, more) = wandb.runs
    assert (first["project"], first["name"], first["config"]["lr"]) == ("project", "run", 2e-3)
    assert first["config"]["task"] == "sst2"
    assert first["id"] == second["id"]
    assert sent.pop() == more.pop() == "finished"
    assert [step for step, _ in more] == sorted(step for step, _ in more)
    assert more[0][0] == 8  # the first epoch's evaluation, in which the signal came
    assert sent + more == numbers(out / "metrics.jsonl")


def test_each_training_of_a_search_is_a_run(directory, tmp_path, wandb):
    configs = [runs.config(epochs=1, seed=seed, wandb="project") for seed in (0, 1)]
    runs.several(directory, tmp_path / "run", configs=configs)
    assert [(options["name"], options["config"]["seed"]) for options, _ in wandb.runs] == [("run-1", 0), ("run-2", 1)]
    for number, (_, sent) in enumerate(wandb.runs, 1):
        assert sent[:-1] == numbers(tmp_path / "run" / "trials" / str(number) / "metrics.jsonl")


def test_without_wandb_the_command_says_so_before_it_reads_anything(directory, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "wandb", None)
    given = ["--model", directory, "--train", "none.tsv", "--dev", "none.tsv", "--out", tmp_path / "run"]
    assert main(list(map(str, ["finetune", "sst2", *given, "--wandb", "project"]))) == 2
    assert "--wandb needs the package wandb" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
