"""What a person is told: the early check, what knowing nothing reaches, tables, errors, held-out rows."""

import io
import itertools
import json
import math
from types import SimpleNamespace

import pytest
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support
from tiny_bert import rows_of

import fastbert
from fastbert.cli import _finetune_report as report
from fastbert.cli.main import main
from fastbert.errors import InputError
from fastbert.tasks import registry, training
from fastbert.tasks.base import Row
from fastbert.tasks.config import FinetuneConfig
from fastbert.tasks.finetune import Callbacks, FinetuneResult, finetune
from fastbert.tasks.results import write_results
from fastbert.tasks.text_classification import TextClassification
from fastbert.tasks.training import EARLY_ROWS


def train(directory, rows, dev, early, out=None, **recipe):
    task = registry.get("sst2")
    config = FinetuneConfig(**{"epochs": 2, "batch_size": 16, "max_seqlen": 16, **recipe})
    tokenizer = fastbert.load_tokenizer(directory)
    callbacks = Callbacks(on_early=early.append)
    return finetune(task, task.model(directory), tokenizer, rows, dev, config, callbacks=callbacks, out=out)


def test_the_early_check_comes_once_before_half_an_epoch(directory, tmp_path, monkeypatch):
    # A clock that is asked at the beginning and at the end of a step, of a second each.
    monkeypatch.setattr("fastbert.tasks.training.time", SimpleNamespace(perf_counter=itertools.count().__next__))
    early = []
    dev = [Row(str(i), row.texts, "1" if i % 3 else "0") for i, row in enumerate(rows_of(30, 2))]
    result = train(directory, rows_of(160, 1), dev, early, tmp_path / "run", log_every=5)
    [record] = early
    assert (record["step"], record["steps"], record["rows"]) == (4, 10, 30)
    assert 0 <= record["accuracy"] <= 1
    assert record["guess_accuracy"] == result.guess["accuracy"] == 20 / 30
    assert record["seconds_left"] == 16  # of both epochs
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["accuracy"] for line in lines if line["kind"] == "early"] == [record["accuracy"]]
    assert [line["step"] for line in lines if line["kind"] == "train"] == [5, 10, 15, 20]


def test_the_early_check_takes_rows_from_all_over_a_large_file(directory):
    # The file is sorted by label: its first 500 rows alone would be all of one.
    dev = sorted(rows_of(3 * EARLY_ROWS, 2), key=lambda row: row.label)
    early = []
    train(directory, rows_of(48, 1), dev, early, epochs=1)
    share = sum(row.label == "1" for row in dev) / len(dev)
    assert early[0]["rows"] == EARLY_ROWS
    assert early[0]["guess_accuracy"] == pytest.approx(max(share, 1 - share), abs=1 / EARLY_ROWS)


def test_two_steps_have_no_early_check(directory):
    early = []
    train(directory, rows_of(32, 1), rows_of(8, 2), early)
    assert early == []


def test_a_model_that_knows_nothing_is_told_of(capsys):
    task = registry.get("sst2")
    record = {"step": 4, "steps": 10, "rows": 30, "seconds_left": 130.0, "accuracy": 0.6, "guess_accuracy": 0.6}
    report.early(task, record)
    shown = capsys.readouterr().out
    assert "step 4 of the epoch's 10, on 30 dev rows: accuracy 0.6000 (one answer for all: 0.6000)" in shown
    assert "about 2 minutes left\n" in shown
    assert "nothing learned yet" in shown
    report.early(task, {**record, "accuracy": 0.61})
    assert "nothing learned yet" not in capsys.readouterr().out
    report.early(task, record, 6)
    assert "about 2 minutes left of this training, one of 6\n" in capsys.readouterr().out

    def warning(accuracy):
        best = {"epoch": 1, "accuracy": accuracy}
        report.result(task, FinetuneResult([best], best, [], {"accuracy": 0.6}), restarts=1)
        return capsys.readouterr().err

    assert "nothing was learned: the best accuracy is 0.6000" in warning(0.6)
    assert warning(0.7) == ""


def test_tables_of_labels_with_line_separators_are_shown(tmp_path, capsys):
    """U+2028, U+0085 and form feeds end no line of a file here, and a tag or a label may hold one."""
    labels = ("a\u2028b", "c\x85d", "e\x0cf")
    task = TextClassification(labels)
    rows = [Row(str(i), ("a film",), label) for i, label in enumerate(labels)]
    metrics = {"accuracy": 1.0}
    paths = write_results(task, rows, labels, metrics, tmp_path, "dev")
    best = {"epoch": 1, **metrics}
    report.result(task, FinetuneResult([best], best, list(labels), paths=paths), restarts=1)
    shown = capsys.readouterr().out
    assert [line.split() for line in shown.split("\n")[2:5]] == [
        [*label.split(), "1.0000", "1.0000", "1.0000", "1"] for label in labels
    ]


def test_tables_are_sklearns():
    task = registry.get("mnli")
    gold = ["entailment"] * 5 + ["neutral"] * 3 + ["contradiction"] * 2
    found = ["entailment", "entailment", "neutral", "neutral", "contradiction"] + ["neutral"] * 5
    rows = [Row(str(i), ("a", "b"), label) for i, label in enumerate(gold)]
    tables = task.tables(rows, found)
    values = precision_recall_fscore_support(gold, found, labels=task.labels, zero_division=0)
    assert tables["classes"][0] == ("label", "precision", "recall", "f1", "rows")
    for line, label, *expected in zip(tables["classes"][1:], task.labels, *values, strict=True):
        assert line == (label, *map(pytest.approx, expected))
    assert [list(line[1:]) for line in tables["confusion"][1:]] == confusion_matrix(
        gold, found, labels=task.labels
    ).tolist()
    assert tables["confusion"][0] == (
        "label",
        "predicted entailment",
        "predicted neutral",
        "predicted contradiction",
    )


def test_numbers_have_a_table_of_differences_and_the_farthest_errors_first():
    task = registry.get("stsb")
    gold, found = [0.0, 0.5, 3.0, 5.0, 4.0], [1.0, 0.5, 0.5, 4.5, 2.0]
    rows = [Row(str(i), ("a", "b"), value) for i, value in enumerate(gold)]
    assert task.tables(rows, found) == {
        "differences": [
            ("gold", "mean_prediction", "mean_difference", "rows"),
            ("0 to 1", 0.75, 0.5, 2),
            ("3 to 4", 0.5, 2.5, 1),
            ("4 to 5", 3.25, 1.25, 2),
        ]
    }
    assert [error["id"] for error in task.errors(rows, found)] == ["2", "4", "0"]


def test_metrics_are_strict_json(tmp_path):
    """The mean loss of an epoch is NaN where one of its steps was skipped."""
    task, rows = registry.get("sst2"), [Row("0", ("a",), "1")]
    paths = write_results(task, rows, ["1"], {"train_loss": math.nan, "accuracy": 1.0}, tmp_path, "dev")
    read = json.loads(paths[0].read_text(), parse_constant=pytest.fail)
    assert read == {"task": "sst2", "rows": 1, "train_loss": "NaN", "accuracy": 1.0}


def test_the_command_holds_rows_out_and_scores_further_files(directory, tmp_path, capsys, monkeypatch):
    cut_at, made = [], training.EvaluationSet.of
    monkeypatch.setattr(training.EvaluationSet, "of", lambda *given: cut_at.append(given[3]) or made(*given))
    for name, count, seed in (("train", 60, 1), ("other", 24, 2)):
        lines = [f"{row.texts[0]}\t{row.label}\n" for row in rows_of(count, seed)]
        (tmp_path / f"{name}.tsv").write_text("sentence\tlabel\n" + "".join(lines))
    run = tmp_path / "run"
    files = ["--train", f"{tmp_path}/train.tsv", "--dev-share", "0.25", "--also", f"{tmp_path}/other.tsv"]
    recipe = ["--epochs", "1", "--batch-size", "8", "--max-seqlen", "16"]
    assert main(["finetune", "sst2", "--model", str(directory), *files, "--out", str(run), *recipe]) == 0
    shown = capsys.readouterr().out
    assert "45 training rows, 15 dev rows" in shown
    assert "early check at step 2 of the epoch's 6, on 15 dev rows" in shown
    assert cut_at == [16, 16], "the dev rows and those of the further file"
    names = ["metrics.json", "predictions.tsv", "errors.jsonl", "classes.tsv", "confusion.tsv"]
    assert all((run / f"{prefix}_{name}").is_file() for prefix in ("dev", "also_other") for name in names)
    assert [line.split("\t")[0] for line in (run / "dev_confusion.tsv").read_text().splitlines()] == [
        "label",
        "0 negative",
        "1 positive",
    ]
    # The same model scores the same, and can write the same report.
    expected = json.loads((run / "also_other_metrics.json").read_text())
    data = ["--data", f"{tmp_path}/other.tsv", "--report", f"{tmp_path}/report"]
    assert main(["evaluate", "sst2", "--model", str(run), *data]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["accuracy"] == expected["accuracy"]
    for name in names[1:]:
        assert (tmp_path / "report" / f"other_{name}").read_text() == (run / f"also_other_{name}").read_text()


def test_a_new_head_is_drawn_by_the_seed_of_the_recipe(directory, tmp_path, monkeypatch):
    (tmp_path / "train.tsv").write_text("sentence\tlabel\n" + "good\t1\nbad\t0\n" * 4)
    heads = []

    def look(args, model, *rest):
        heads.append(model.classifier.weight.tolist())
        raise InputError("that was all")

    monkeypatch.setattr(report, "header", look)
    for number, seed in enumerate("343"):
        given = ["--model", directory, "--train", tmp_path / "train.tsv", "--dev-share", 0.5]
        given += ["--max-seqlen", 16, "--seed", seed, "--out", tmp_path / str(number)]
        assert main(["finetune", "sst2", *map(str, given)]) == 2
    assert heads[0] == heads[2] != heads[1]


@pytest.mark.parametrize(
    ("name", "train", "dev", "options", "expected"),
    [
        # A sorted file, of which the first rows are taken.
        (
            "sst2",
            "sentence\tlabel\n" + "good\t1\n" * 4 + "bad\t0\n" * 4,
            "sentence\tlabel\n" + "bad\t0\n" * 3 + "good\t1\n",
            ["--limit-train", "4", "--limit-dev", "3"],
            [
                "the 4 training rows all have the same answer: 1 (--limit-train takes the first rows)",
                "the 3 dev rows all have the same answer: 0 (--limit-dev takes the first rows)",
            ],
        ),
        (
            "stsb",
            "sentence1\tsentence2\tscore\n" + "a\tfilm\t2.5\n" * 2 + "a\tbook\t4\n",
            "sentence1\tsentence2\tscore\n" + "a\tfilm\t2.5\n" * 2,
            [],
            ["the 2 dev rows all have the same answer: 2.5"],
        ),
        ("ner", "the O\nfilm B-X\n", "a O\nbook O\n\nfine O\n", [], ["the 2 dev rows all have the same answer"]),
        ("ner", "the O\nfilm B-X\n", "a O\nbook B-X\n", [], []),  # one row has but one answer
    ],
    ids=["sorted", "numbers", "no-entities", "one-row"],
)
def test_rows_of_one_answer_are_told_of(name, train, dev, options, expected, directory, tmp_path, capsys, monkeypatch):
    def stop(*_):
        raise InputError("that was all")

    monkeypatch.setattr(report, "header", stop)
    given = ["--model", str(directory), "--max-seqlen", "16", "--out", str(tmp_path / "run"), *options]
    for part, text in (("train", train), ("dev", dev)):
        (tmp_path / f"{part}.txt").write_text(text)
        given += [f"--{part}", str(tmp_path / f"{part}.txt")]
    assert main(["finetune", name, *given]) == 2
    told = [line for line in capsys.readouterr().err.splitlines() if "the same answer" in line]
    assert told == [f"warning: {line}" for line in expected]


def test_the_command_needs_one_source_of_dev_rows(directory, tmp_path, capsys):
    files = ["--model", str(directory), "--train", f"{tmp_path}/train.tsv", "--out", f"{tmp_path}/run"]
    assert main(["finetune", "sst2", *files]) == 2
    assert "expected either --dev or --dev-share, got neither" in capsys.readouterr().err
    assert main(["finetune", "sst2", *files, "--dev", f"{tmp_path}/dev.tsv", "--dev-share", "0.1"]) == 2
    assert "expected either --dev or --dev-share, got both" in capsys.readouterr().err


def test_the_header_names_the_backend_that_was_asked_for(directory, tmp_path, capsys, monkeypatch):
    lines = [f"{row.texts[0]}\t{row.label}\n" for row in rows_of(24, 1)]
    (tmp_path / "train.tsv").write_text("sentence\tlabel\n" + "".join(lines))
    monkeypatch.setenv("FASTBERT_BACKEND", "reference")
    given = ["--model", directory, "--train", tmp_path / "train.tsv", "--dev-share", 0.5, "--out", tmp_path / "run"]
    assert main(["finetune", "sst2", *map(str, given), "--epochs", "1", "--max-seqlen", "16"]) == 0
    [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("backends ")]
    assert line.split() == ["backends", "reference"]


def test_texts_that_are_cut_are_told_of_by_every_command(directory, tmp_path, caplog, monkeypatch):
    """Once, and not for the dev rows too; nor where they fit, or are few."""
    texts = ["the film is good"] * 4 + ["the film is a very good film"]
    (tmp_path / "train.tsv").write_text("sentence\tlabel\n" + "".join(f"{t}\t{n % 2}\n" for n, t in enumerate(texts)))
    data, run, out = str(tmp_path / "train.tsv"), str(tmp_path / "run"), str(tmp_path / "p.tsv")
    given = ["--train", data, "--dev", data, "--epochs", "1", "--out", run, "--max-seqlen", "8"]
    assert main(["finetune", "sst2", "--model", str(directory), *given]) == 0

    def said():
        return [message for message in caplog.messages if "longer" in message]

    most = "longer than 8 tokens and {} cut; --max-seqlen N (at most the model's 32) keeps more"
    told = [f"1 of 5 training rows is {most.format('was')}"]
    assert said() == told
    assert main(["evaluate", "sst2", "--model", run, "--data", data]) == 0
    assert main(["predict", "sst2", "--model", run, "--data", data, "--out", out]) == 0
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(f"{texts[-1]}\n{texts[-1]}\n".encode())))
    assert main(["predict", "sst2", "--model", run, "--data", "-", "--out", str(tmp_path / "typed.tsv")]) == 0
    told += [f"1 of 5 rows is {most.format('was')}"] * 2 + [f"2 of 2 rows are {most.format('were')}"]
    assert said() == told
    assert main(["predict", "sst2", "--model", run, "--data", data, "--out", out, "--max-seqlen", "9"]) == 0
    assert said() == told
