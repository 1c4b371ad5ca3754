"""Restarts and the paper's grid: every training is `finetune`'s, the best by the dev rows is kept, the table tells."""

import json

import pytest
import torch
import yaml
from tiny_bert import rows_of

import fastbert
from fastbert.cli.main import main
from fastbert.errors import InputError
from fastbert.tasks import registry
from fastbert.tasks.config import FinetuneConfig, SearchConfig
from fastbert.tasks.finetune import Callbacks, finetune
from fastbert.tasks.search import search, trials_table
from fastbert.train.metrics import read_metrics
from fastbert.train.plots import score_plot


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Training and dev files of SST-2's format."""
    folder = tmp_path_factory.mktemp("files")
    for name, count, seed in (("train", 64, 1), ("dev", 40, 2)):
        lines = [f"{row.texts[0]} \t{row.label}\n" for row in rows_of(count, seed)]
        (folder / f"{name}.tsv").write_text("sentence\tlabel\n" + "".join(lines))
    return folder


def config(**changes):
    return FinetuneConfig(**{"epochs": 1, "batch_size": 16, "lr": 1e-3, "max_seqlen": 16, **changes})


def test_the_papers_grid():
    recipes = SearchConfig(grid=True, restarts=2).trials(FinetuneConfig(seed=7))
    points = [(r.batch_size, r.lr, r.epochs, r.seed) for r in recipes]
    assert len(points) == len(set(points)) == 36
    assert {p[0] for p in points} == {16, 32}
    assert {p[1] for p in points} == {5e-5, 3e-5, 2e-5}
    assert {p[2] for p in points} == {2, 3, 4}
    assert {p[3] for p in points} == {7, 8}
    assert SearchConfig().trials(config()) == [config()]
    assert SearchConfig(restarts=3).trials(config(seed=4)) == [config(seed=4), config(seed=5), config(seed=6)]


@pytest.mark.parametrize(
    ("search", "recipe", "reason"),
    [
        ({"restarts": 0}, {}, "restarts must be between 1 and 100000, got 0"),
        ({"restarts": 10**12}, {}, "restarts must be between 1 and 100000, got 1000000000000"),
        ({"grid": True, "grid_epochs": (10**12,)}, {}, "epochs must be at most 100000, got 1000000000000"),
        ({"grid": True, "grid_lrs": ()}, {}, "grid_lrs must hold at least one value"),
        ({"grid": True}, {"token_budget": 100}, "expected no token_budget, got 100"),
        ({"grid": True, "grid_epochs": (0,)}, {}, "epochs must be at least 1, got 0"),
    ],
)
def test_what_is_no_search(search, recipe, reason):
    with pytest.raises(InputError, match=reason):
        SearchConfig(**search).trials(FinetuneConfig(**recipe))


def test_every_trial_is_a_finetuning_and_the_best_is_kept(directory, tmp_path, pictures):
    task, tokenizer = registry.get("sst2"), fastbert.load_tokenizer(directory)
    rows, dev = rows_of(96, 1), rows_of(40, 2)
    configs = SearchConfig(restarts=2, grid=True, grid_batch_sizes=(16,), grid_lrs=(1e-4, 3e-3), grid_epochs=(2,))
    configs = configs.trials(config())
    totals, lines = [], []
    torch.manual_seed(configs[0].seed)
    result, model = search(
        task,
        task.model(directory),
        lambda: task.model(directory),
        tokenizer,
        rows,
        dev,
        configs,
        out=tmp_path / "run",
        callbacks=Callbacks(on_step=totals.append),
        on_trial=lines.append,
    )
    assert totals == [48] * 48
    assert result.trials == lines
    assert [(line["trial"], line["lr"], line["seed"]) for line in lines] == [
        (1, 1e-4, 0),
        (2, 1e-4, 1),
        (3, 3e-3, 0),
        (4, 3e-3, 1),
    ]
    for recipe, line in zip(configs, lines, strict=True):
        torch.manual_seed(recipe.seed)
        alone = finetune(task, task.model(directory), tokenizer, rows, dev, recipe)
        assert (alone.best["accuracy"], alone.best["dev_loss"]) == (line["accuracy"], line["dev_loss"])
    accuracies = [line["accuracy"] for line in lines]
    assert len(set(accuracies)) > 1
    best = lines[accuracies.index(max(accuracies))]
    assert result.best["accuracy"] == max(accuracies)

    # The files are the best trial's, and so is the model.
    run = tmp_path / "run"
    assert [json.loads(line) for line in (run / "trials.jsonl").read_text().splitlines()] == lines
    assert json.loads((run / "dev_metrics.json").read_text())["accuracy"] == max(accuracies)
    saved = yaml.safe_load((run / "config.yaml").read_text())
    assert (saved["lr"], saved["seed"], saved["task"]) == (best["lr"], best["seed"], "sst2")
    assert all((run / "trials" / str(n) / "metrics.jsonl").stat().st_size for n in (1, 2, 3, 4))
    reloaded = task.model(run / "model").state_dict()
    assert all(torch.equal(value.cpu(), reloaded[name]) for name, value in model.state_dict().items())
    drawn = read_metrics(run / "trials" / str(best["trial"]) / "metrics.jsonl")
    picture = score_plot(drawn, tmp_path / "best.png", metric="accuracy", guess=result.guess["accuracy"])
    assert (run / "loss.png").read_bytes() == picture.read_bytes()


def test_of_trials_that_are_equally_good_the_first_is_the_best(directory, tmp_path):
    """At rates that change no prediction."""
    task, tokenizer = registry.get("sst2"), fastbert.load_tokenizer(directory)
    configs = SearchConfig(grid=True, grid_batch_sizes=(16,), grid_lrs=(3e-12, 1e-12, 2e-12), grid_epochs=(1,))
    configs = configs.trials(config())
    settings = task.model(directory).config

    def made() -> fastbert.BertForSequenceClassification:
        """A model that has no files of a tokenizer."""
        return fastbert.BertForSequenceClassification(settings)

    torch.manual_seed(configs[0].seed)
    result, _ = search(task, made(), made, tokenizer, rows_of(32, 1), rows_of(20, 2), configs, out=tmp_path / "run")
    assert fastbert.load_tokenizer(tmp_path / "run" / "model").to_str() == tokenizer.to_str()
    assert len({line["accuracy"] for line in result.trials}) == 1
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["lr"] == 3e-12
    assert [line[0] for line in trials_table(result.trials, task.metrics)[1:]] == [1, 2, 3]


def test_the_table_has_the_best_first():
    same = {"seed": 0, "wall_seconds": 1.0}
    trials = [
        {"trial": 1, "batch_size": 16, "lr": 5e-5, "epochs": 2, "best_epoch": 2, "f1": 0.5, **same},
        {"trial": 2, "batch_size": 32, "lr": 2e-5, "epochs": 3, "best_epoch": 1, "f1": 0.7, **same},
    ]
    assert trials_table(trials, ("f1",)) == [
        ("trial", "batch_size", "lr", "epochs", "seed", "best_epoch", "f1", "wall_seconds"),
        (2, 32, "2e-05", 3, 0, 1, 0.7, 1.0),
        (1, 16, "5e-05", 2, 0, 2, 0.5, 1.0),
    ]


def test_the_command_with_restarts_and_a_grid(directory, files, tmp_path, capsys, caplog):
    run = tmp_path / "run"
    where = ["--model", str(directory), "--train", f"{files}/train.tsv", "--dev", f"{files}/dev.tsv", "--out", str(run)]
    grid = ["--grid", "--grid-batch-sizes", "16", "32", "--grid-lrs", "3e-3", "--grid-epochs", "1", "--restarts", "2"]
    assert main(["finetune", "sst2", *where, *grid, "--max-seqlen", "16"]) == 0
    shown = capsys.readouterr().out
    assert "4 trainings: batches of 16, 32 rows x lr 0.003 x 1 epochs" in shown
    assert "training 4 of 4: batch size 32, lr 0.003, 1 epoch, seed 1: accuracy" in shown
    [head] = [i for i, line in enumerate(shown.splitlines()) if line.split()[:2] == ["trial", "batch_size"]]
    table = [line.split() for line in shown.splitlines()[head + 1 : head + 5]]
    assert sorted(int(line[0]) for line in table) == [1, 2, 3, 4]
    accuracies = [float(line[6]) for line in table]
    assert accuracies == sorted(accuracies, reverse=True)
    # A new head is the same news in every trial.
    assert sum("newly initialised" in record.getMessage() for record in caplog.records) == 1


def test_restarts_tell_mean_and_spread(directory, files, tmp_path, capsys):
    run = tmp_path / "run"
    where = ["--model", str(directory), "--train", f"{files}/train.tsv", "--dev", f"{files}/dev.tsv", "--out", str(run)]
    recipe = ["--restarts", "2", "--epochs", "1", "--max-seqlen", "16", "--batch-size", "16"]
    assert main(["finetune", "sst2", *where, *recipe]) == 0
    a, b = (json.loads(line)["accuracy"] for line in (run / "trials.jsonl").read_text().splitlines())
    expected = f"accuracy of 2 seeds: mean {(a + b) / 2:.4f}, standard deviation {abs(a - b) / 2**0.5:.4f}"
    assert expected in capsys.readouterr().out


def test_a_trial_that_diverges_is_left_out(directory, files, tmp_path, capsys):
    run = tmp_path / "run"
    where = ["--model", str(directory), "--train", f"{files}/train.tsv", "--dev", f"{files}/dev.tsv"]
    # Small batches: the steps without a gradient end before the early check, which would find out too.
    grid = ["--grid", "--grid-batch-sizes", "2", "--grid-epochs", "1", "--max-seqlen", "16", "--grid-lrs"]
    assert main(["finetune", "sst2", *where, *grid, "1e12", "1e-3", "--out", str(run)]) == 0
    shown = capsys.readouterr().out
    assert "lr 1e+12, 1 epoch, seed 0: training stopped: the gradient was not finite" in shown
    failed, good = [json.loads(line) for line in (run / "trials.jsonl").read_text().splitlines()]
    assert "accuracy" not in failed
    assert json.loads((run / "dev_metrics.json").read_text())["accuracy"] == good["accuracy"]
    assert yaml.safe_load((run / "config.yaml").read_text())["lr"] == 1e-3
    assert trials_table([failed, good], ("accuracy",))[2][5:7] == ("-", "-")
    assert main(["finetune", "sst2", *where, *grid, "1e12", "9e11", "--out", str(tmp_path / "none")]) == 2
    assert "all of 2 trainings failed, the last because training stopped" in capsys.readouterr().err


def test_a_model_that_says_no_numbers_decides_nothing(directory, files, tmp_path, capsys):
    """One step breaks its weights: no gradient is there any more to tell. Of NaN the first label would be taken."""
    run = tmp_path / "run"
    where = ["--model", str(directory), "--train", f"{files}/train.tsv", "--dev", f"{files}/dev.tsv", "--out", str(run)]
    recipe = ["--epochs", "1", "--batch-size", "64", "--max-seqlen", "16"]
    assert main(["finetune", "sst2", *where, *recipe, "--lr", "1e12"]) == 2
    said = "task sst2: expected finite outputs of the model, got "
    assert said in capsys.readouterr().err
    assert not (run / "model").exists()
    where[-1] = str(tmp_path / "grid")
    grid = ["--grid", "--grid-batch-sizes", "64", "--grid-epochs", "1", "--grid-lrs", "1e12", "1e-3"]
    assert main(["finetune", "sst2", *where, "--max-seqlen", "16", *grid]) == 0
    assert f"lr 1e+12, 1 epoch, seed 0: {said}" in capsys.readouterr().out
