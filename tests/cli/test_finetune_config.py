"""`finetune --config FILE`: options from a file, which the command line overrides; a run from its own config.yaml."""

from __future__ import annotations

import pytest
import tiny_bert
import yaml
from finetune_runs import assert_same_run

from fastbert.cli.finetune import Finetune, defaults
from fastbert.cli.main import main, parse
from fastbert.tasks.config import FEATURE_RECIPE, RECIPES

ROWS = [("the film is good", 1), ("a dull , bad book", 0), ("it was very great", 1), ("not fine , and poor", 0)]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_bert.save(tmp_path_factory.mktemp("model"), "BertModel")


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A directory with data, for names as they are typed."""
    monkeypatch.chdir(tmp_path)
    lines = "".join(f"{text}\t{label}\n" for text, label in ROWS * 4)
    for name in ("train.tsv", "dev.tsv", "other.tsv"):
        (tmp_path / name).write_text(f"sentence\tlabel\n{lines}")
    with open("train.tsv", "a") as file:
        file.write("a row without a label\n")
    return tmp_path


def run(*words, status: int = 0) -> None:
    assert main(["finetune", *map(str, words)]) == status


def parsed(*words) -> dict:
    argv = [str(word) for word in words]
    return vars(parse(Finetune, "finetune", argv, defaults(argv)))


GIVEN = ("--train", "train.tsv", "--skip-bad-rows", "--max-seqlen", 24, "--epochs", 2, "--lr", 1e-3, "--batch-size", 8)


@pytest.mark.parametrize(
    "more",
    [
        ("--dev", "dev.tsv", "--also", "other.tsv", "--seed", 3, "--text-columns", "sentence"),
        ("--dev-share", 0.3, "--features", "last4-sum", "--feature-units", 8),
    ],
)
def test_a_run_is_repeated_from_its_config(model, place, more):
    run("sst2", "--model", model, *GIVEN, *more, "--out", "RUN")
    run("--config", "RUN/config.yaml", "--out", "AGAIN")
    assert_same_run(place / "AGAIN", place / "RUN")
    run("--config", "AGAIN/config.yaml", "--out", "AGAIN", "--resume", "auto")  # it is complete
    run("--config", "RUN/config.yaml", "--out", "OTHER", "--lr", 2e-3)
    told = [yaml.safe_load((place / name / "config.yaml").read_text()) for name in ("RUN", "OTHER")]
    assert {**told[0], "lr": 2e-3} == told[1]


def test_the_best_training_of_a_search_is_repeated(model, place):
    run("sst2", "--model", model, *GIVEN, "--dev", "dev.tsv", "--restarts", 2, "--out", "RUN")
    run("--config", "RUN/config.yaml", "--out", "AGAIN")
    weights = [(place / name / "model" / "model.safetensors").read_bytes() for name in ("RUN", "AGAIN")]
    assert weights[0] == weights[1]


def test_the_patience_of_a_search_is_no_option_of_its_best_training(model, place, capsys):
    """It may be over before it has waited for so long; only on the command line is this a mistake."""
    grid = ("--grid", "--grid-batch-sizes", 8, "--grid-lrs", 2e-3, "--grid-epochs", 2, 4, "--patience", 2)
    common = ("--train", "dev.tsv", "--dev", "dev.tsv", "--max-seqlen", 24)
    run("sst2", "--model", model, *common, *grid, "--out", "RUN")
    options = yaml.safe_load((place / "RUN" / "config.yaml").read_text())
    assert (options["epochs"], options["patience"]) == (2, 2)
    run("--config", "RUN/config.yaml", "--out", "AGAIN")
    weights = [(place / name / "model" / "model.safetensors").read_bytes() for name in ("RUN", "AGAIN")]
    assert weights[0] == weights[1]
    run("--config", "RUN/config.yaml", "--out", "OTHER", "--patience", 3, status=2)
    assert "--patience 3 would change nothing" in capsys.readouterr().err


def test_the_command_line_comes_first_then_the_file_then_the_recipe(place):
    (place / "o.yaml").write_text("task: squad2\nmodel: ~/M\ntrain: [a, b]\nlr: 1e-5\nout: O\n")
    found = parsed("--config", "o.yaml")
    assert found.items() >= {**RECIPES["squad2"], "lr": 1e-5, "task": "squad2"}.items()
    assert [str(path) for path in found["train"]] == ["a", "b"]
    assert "~" not in str(found["model"])
    found = parsed("--config=o.yaml", "--lr", "3e-5", "--train", "c", "--epochs=7", "--correct-bias", "--out", "P")
    assert found.items() >= {"batch_size": 48, "lr": 3e-5, "epochs": 7, "task": "squad2"}.items()
    assert (str(found["train"][0]), str(found["out"])) == ("c", "P")
    # Another task has its own recipe.
    assert parsed("sst2", "--config", "o.yaml").items() >= {"task": "sst2", "max_seqlen": 128, "lr": 1e-5}.items()
    assert parsed("--config", "o.yaml", "swag").items() >= {**RECIPES["swag"], "lr": 1e-5}.items()
    (place / "f.yaml").write_text("task: ner\nmodel: M\ntrain: a\nout: O\nfeatures: last\n")
    assert parsed("--config", "f.yaml").items() >= FEATURE_RECIPE.items()


@pytest.mark.parametrize(
    ("written", "given", "kept"),
    [
        ("dev: d", ["--dev-share", "0.1"], {"dev": None, "dev_share": 0.1}),
        ("dev_share: 0.2", ["--dev=d"], {"dev_share": None}),
        ("token_budget: 64", ["--batch-size", "8"], {"token_budget": None, "batch_size": 8}),
        ("batch_size: 64", ["--token_budget", "8"], {"token_budget": 8, "batch_size": 32}),
        ("label_column: a", ["--label-columns", "b", "c"], {"label_column": None, "label_columns": ("b", "c")}),
        ("zero: 1", ["--deepspeed", "ds.json"], {"zero": None, "deepspeed": "ds.json"}),
    ],
)
def test_what_is_in_place_of_an_option_of_the_file(place, written, given, kept):
    (place / "o.yaml").write_text(f"task: sst2\nmodel: M\ntrain: a\nout: O\n{written}\n")
    assert parsed("--config", "o.yaml", *given).items() >= kept.items()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("lr_: 1e-5\n", "o.yaml: unknown option lr_; did you mean lr?"),
        ("max_seq_len: 64\n", "o.yaml: unknown option max_seq_len; did you mean max_seqlen?"),
        (
            "per_device_train_batch_size: 8\n",
            "o.yaml: unknown option per_device_train_batch_size; did you mean batch_size?",
        ),
        ("config: other.yaml\n", "o.yaml: expected options, got config, which names such a file"),
        ("epochs: many\n", "o.yaml: epochs must be a whole number, got 'many'"),
        ("batch-size: 3\n", "o.yaml: unknown option batch-size; did you mean batch_size?"),
        ("train: []\n", "o.yaml: train: expected a file, got an empty list"),
        ("train: [1]\n", "o.yaml: train must be a list (each a path), got [1]"),
        ("model: ''\n", "o.yaml: model must be a path, got ''"),
        ("- lr\n", "o.yaml: expected a mapping, got list"),
        ("lr: -1\n", "lr must be above 0"),
        (
            "lr: 1e-5\n",
            "expected TASK, --model, --train and --out, got none; `fastbert finetune --help` shows the options",
        ),
        ("task: sst2\nmodel: M\ntrain: a\n", "expected --out, got none; `fastbert finetune --help` shows the options"),
        ("task: sst3\nmodel: M\ntrain: a\nout: O\n", "no such task: sst3"),
        ("task: cola\nmodel: M\ntrain: a\nout: O\ndev: a\ndoc_stride: 4\n", "--doc-stride 4 would change nothing"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_in_one_sentence(place, capsys, content, said):
    (place / "o.yaml").write_text(content)
    run("--config", "o.yaml", status=2)
    error = capsys.readouterr().err
    assert error.startswith(f"fastbert: {said}")
    assert error.count("\n") == 1


def test_a_runs_directory_is_told_what_to_give_of_it(place, capsys):
    (place / "RUN").mkdir()
    (place / "RUN" / "config.yaml").write_text("lr: 1e-5\n")
    run("--config", "RUN", status=2)
    assert "got a directory; the options of this run are in RUN/config.yaml" in capsys.readouterr().err
