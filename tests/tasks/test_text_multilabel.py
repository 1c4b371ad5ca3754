"""text-multilabel: a text has any number of labels, or none."""

from __future__ import annotations

import csv
import json
import re

import finetune_runs as runs
import numpy as np
import pytest
import tiny_bert
import torch
from sklearn.metrics import accuracy_score, f1_score, precision_recall_fscore_support
from tiny_bert import rows_of

import fastbert
from fastbert.cli.main import main
from fastbert.config import BertConfig
from fastbert.errors import DataError, InputError
from fastbert.tasks import registry
from fastbert.tasks.bad_rows import BadRows
from fastbert.tasks.base import Row, require_labels
from fastbert.tasks.config import TaskOptions
from fastbert.tasks.text_multilabel import TextMultilabel

# The comment column of Jigsaw's file, and three of its six labels.
TOXIC = {"text_columns": ("comment_text",), "label_columns": ("toxic", "obscene", "threat")}
JIGSAW = (
    '"id","comment_text","toxic","obscene","threat"\n"0a","He said ""no"".\n\nLeft, then","0","0","0"\n"0b",Bad,1,0,1\n'
)
IN_COLUMNS = r": zeros and ones that say which labels a text has belong in columns \(--label-columns\)"
FORMS = {
    "text\tlabel\nA b\ta,b\nC\t\nD\tb\n": {},  # with names of one's own, one row without any
    "text\tlabel\nA b\ta|b\nC\t\nD\tb\n": {},
    "text\tlabel\nA b\ta; b\nC\t\nD\tb\n": {},
    "text,label\nA b,\"['a', 'b']\"\nC,[]\nD,['b']\n": {},  # as pandas writes a column of lists
    "text\tlabel\nA b\ta  b\nC\t\nD\tb\n": {"label_separator": " "},
    "text\tlabel\nA b\ta::b\nC\t\nD\tb\n": {"label_separator": "::"},
    '{"text": "A b", "label": ["b", "a"]}\n{"text": "C", "label": []}\n{"text": "D", "label": ["b"]}\n': {},
    '[{"text": "A b", "labels": ["b", "a"]}, {"text": "C", "labels": []}, {"text": "D", "labels": "b"}]': {
        "label_column": "labels"
    },
    "ID\tTweet\ta\tb\nx\tA b\t1\t1\ny\tC\t0\t0\nz\tD\t0\t1\n": {
        "text_columns": ("Tweet",),
        "label_columns": ("a", "b"),
    },
    '{"text": "A b", "a": " 1", "b": true}\n{"text": "C", "a": 0, "b": 0.0}\n{"text": "D", "a": false, "b": 1.0}\n': {
        "label_columns": ("a", "b")
    },
}


def task_of(**options) -> TextMultilabel:
    task = registry.get("text-multilabel")
    task.configure(TaskOptions(**options))
    return task


@pytest.mark.parametrize("content", FORMS)
def test_forms_of_files(tmp_path, content):
    path = tmp_path / ("data.csv" if content.startswith("text,") else "data.json" if content[0] == "[" else "data.tsv")
    path.write_text(content)
    task = task_of(**FORMS[content])
    rows = task.read(path)
    assert [(row.texts, row.label) for row in rows] == [(("A b",), ("a", "b")), (("C",), ()), (("D",), ("b",))]
    assert require_labels(task, rows, path) == rows
    task.learn(rows)
    assert task.labels == ("a", "b")
    assert [task.target(row.label).tolist() for row in rows] == [[1, 1], [0, 0], [0, 1]]


def test_go_emotions_as_published_and_its_numbers_in_their_order(tmp_path):
    """A text, the numbers of its emotions and an id, without a header."""
    path = tmp_path / "train.tsv"
    path.write_text("My favourite food\t27\teebbqej\nIf he, does\t2,10\ted00q6i\nDang\t10,2,27\tezq\n")
    task = task_of(text_columns=("1",), label_column="2")
    rows = task.read(path)
    assert [row.label for row in rows] == [("27",), ("2", "10"), ("2", "10", "27")]
    task.learn(rows)
    assert task.labels == ("2", "10", "27")


def test_classes_of_a_parquet_file_have_their_names(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    names = {"feature": {"names": ["joy", "anger", "fear"], "_type": "ClassLabel"}, "_type": "Sequence"}
    table = pa.table({"text": ["A", "B", "C", "D"], "labels": [[2, 0], [], [1], [-1]]})
    kept = {"info": {"features": {"labels": names}}}
    pq.write_table(table.replace_schema_metadata({"huggingface": json.dumps(kept)}), tmp_path / "a.parquet")
    rows = task_of(label_column="labels").read(tmp_path / "a.parquet")
    assert [row.label for row in rows] == [("fear", "joy"), (), ("anger",), None], "-1 is a hub's word for no label"


def test_jigsaw_as_published(tmp_path):
    path = tmp_path / "train.csv"
    path.write_text(JIGSAW)
    task = task_of(**TOXIC)
    rows = task.read(path)
    assert rows == [Row("0a", ('He said "no".\n\nLeft, then',), ()), Row("0b", ("Bad",), ("threat", "toxic"))]
    task.learn(rows)
    assert task.labels == ("toxic", "obscene", "threat"), "in the order of the columns, and also without a row"
    for unknown in ("-1,-1,-1", "-1.0,-1.0,-1.0", "1,0,-1"):  # a row of its test file that is not scored
        path.write_text(JIGSAW.replace(",1,0,1", f",{unknown}"))
        assert [row.label for row in task.read(path)] == [(), None]
    path.write_text('"id","comment_text"\n"0a","Fine"\n"0b","Bad"\n')
    [row, other] = task.read(path)
    assert (row.texts, row.label, other.label) == (("Fine",), None, None)
    said = f"{path}, line 2: expected the columns toxic, obscene, threat of labels, got the columns id, comment_text"
    with pytest.raises(DataError, match=re.escape(f"{said} (--label-columns names others)")):
        require_labels(task, [row], path)


def test_fast_texts_lines(tmp_path):
    path = tmp_path / "cooking.train"
    lines = "__label__sauce __label__cheese How much, in it?", "__label__knives\tWhich knife", "__label__x __label__y"
    path.write_text("\n".join(lines))
    task = task_of()
    with pytest.raises(DataError, match="line 3: expected labels and a text, as in the first line, got"):
        task.read(path)
    task.bad_rows = BadRows(skip=True)
    assert [(row.texts[0], row.label) for row in task.read(path)] == [
        ("How much, in it?", ("cheese", "sauce")),
        ("Which knife", ("knives",)),
    ]


@pytest.mark.parametrize(
    ("content", "options", "said"),
    [
        ("text\tlabel\nA\ta,a\n", {}, "line 2: expected every label once, got a 2 times"),
        ("text\tlabel\nA\ta,,b\n", {}, "line 2: expected labels of a character or more, no tab or line end, got ''"),
        (
            '{"text": "A", "label": [1, 0, 1]}\n',
            {},
            f"line 1: expected every label once, got 1 2 times{IN_COLUMNS}",
        ),
        ("text\tlabel\nA\t[1. 0. 1.]\n", {}, f"line 2: expected every label once, got 1. 2 times{IN_COLUMNS}"),
        ("text\tlabel\nA\t[True, True]\n", {}, f"line 2: expected every label once, got True 2 times{IN_COLUMNS}"),
        (
            '{"text": "A", "label": [true, false]}\n',
            {},
            rf"line 1: expected a list of labels, got \[True, False\]{IN_COLUMNS}",
        ),
        (
            "text\tlabel\nA\t['a', 3]\n",
            {},
            r'line 2: expected a list of labels, all of them in quotes or none, got "\[',
        ),
        ("text\tlabel\nA\t{'a': 1}\n", {}, 'line 2: expected a list of labels, all of them in quotes or none, got "{'),
        (
            "text\tlabel\nA\tarray(['a', 'b'], dtype=object)\n",
            {},
            r'line 2: expected labels, or a list of them in square brackets, got "array\(',
        ),
        ('{"text": "A", "label": [["a"]]}\n', {}, "line 1: expected a list of labels, got "),
        ('{"text": "A", "label": [NaN]}\n', {}, r"line 1: expected a list of labels, got \[nan\]"),
        (
            r'{"text": "A", "label": ["a\tb"]}',
            {},
            r"line 1: expected labels of a character or more, no tab or line end, got 'a\\tb'",
        ),
        ('{"text": "A", "label": {"a": 1}}\n', {}, "line 1: expected a list of labels, got "),
        (
            '{"text": "A", "label": ["Failure, heart"]}\n',
            {},
            r"line 1: expected labels without commas, semicolons and vertical bars, which separate them "
            r"\(--label-separator names another\), got 'Failure, heart'",
        ),
        ("text\ta\tb\nA\t1\t2\n", {"label_columns": ("a", "b")}, "line 2: expected 0 or 1 in the column b, got '2'"),
        (
            '{"text": "A", "a": 1, "b": null}\n',
            {"label_columns": ("a", "b")},
            "line 1: expected 0 or 1 in the column of every label, got none in b",
        ),
    ],
)
def test_wrong_rows_are_told_with_file_line_and_reason(tmp_path, content, options, said):
    path = tmp_path / "wrong.tsv"
    path.write_text(content)
    with pytest.raises(DataError, match=f"^{path}, {said}"):
        task_of(**options).read(path)


def test_labels_of_a_dev_file_are_those_of_the_training_file(tmp_path):
    path = tmp_path / "dev.tsv"
    path.write_text("text\tlabel\nA\ta,c\n")
    with pytest.raises(DataError, match="line 2: expected labels among a, b, got 'c'"):
        TextMultilabel(("a", "b")).read(path)
    assert TextMultilabel(("LABEL_0", "LABEL_1")).parse("1,0") == ("LABEL_0", "LABEL_1")
    task = TextMultilabel(("a", "b"))
    task.predicting = True
    assert [row.label for row in task.read(path)] == [None]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"label_columns": ("a",)}, "label_columns are two or more, one for each label, got a"),
        ({"label_columns": ("a", "a")}, "text_columns and label_columns must be different names, got 'a', 'a'"),
        ({"label_columns": ("a", "b"), "label_column": "c"}, "in place of one column of labels, got label_column too"),
        ({"label_separator": ""}, "label_separator must be a character or several, no tab or line end, got ''"),
        ({"label_separator": "a\n"}, r"label_separator must be a character or several, no tab or line end, got 'a\\n'"),
    ],
)
def test_options_that_do_not_fit(options, said):
    with pytest.raises(InputError, match=said):
        TaskOptions(**options)


def test_a_label_that_joins_others_with_blanks_is_told(tmp_path, caplog):
    path = tmp_path / "train.tsv"
    path.write_text("text\tlabel\nA\tcs.AI cs.CV\nB\tcs.AI\nC\tcs.CV\n")
    task = task_of()
    task.for_training(task.read(path), path)
    assert "the label 'cs.AI cs.CV' is several others with blanks between them" in caplog.text
    caplog.clear()
    path.write_text("text\tlabel\nA\tsci fi\nB\tsci\nC\tcs.CV\n")
    task.for_training(task.read(path), path)
    assert not caplog.text


GOLD = [("a",), ("a", "b"), (), ("c",)]
FOUND = [("a",), ("b",), ("c",), ("c",)]


def test_metrics_and_tables_by_hand():
    """Right are a, b and c once each, of four labels; four were predicted. F1 of a: 2/3, of b: 1, of c: 2/3; d is
    nowhere, which counts as 0."""
    task = TextMultilabel(("a", "b", "c", "d"))
    rows = [Row(str(index), ("x",), label) for index, label in enumerate(GOLD)]
    assert task.metric(rows, FOUND) == pytest.approx(
        {"micro_f1": 6 / 8, "macro_f1": (2 / 3 + 1 + 2 / 3 + 0) / 4, "exact_match": 2 / 4}
    )
    assert task.tables(rows, FOUND)["classes"][1:] == [
        ("a", 1.0, 0.5, pytest.approx(2 / 3), 2),
        ("b", 1.0, 1.0, 1.0, 1),
        ("c", 0.5, 1.0, pytest.approx(2 / 3), 1),
        ("d", 0.0, 0.0, 0.0, 0),
    ]
    assert task.guess(rows) == [("a",)] * 4
    assert [error["id"] for error in task.errors(rows, FOUND)] == ["1", "2"]
    one = TextMultilabel(("a",))
    rows = [Row(str(index), ("x",), label) for index, label in enumerate([("a",), (), ()])]
    assert one.metric(rows, [("a",)] * 3) == pytest.approx({"micro_f1": 1 / 2, "macro_f1": 1 / 2, "exact_match": 1 / 3})


def test_metrics_and_tables_are_scikit_learns():
    draw = np.random.default_rng(0)
    gold, found = draw.integers(0, 2, (2, 50, 5))
    names = np.array(list("abcde"))
    sides = [[tuple(names[row == 1].tolist()) for row in side] for side in (gold, found)]
    task, rows = TextMultilabel(tuple("abcde")), [Row(str(i), ("x",), label) for i, label in enumerate(sides[0])]
    assert task.metric(rows, sides[1]) == pytest.approx(
        {
            "micro_f1": f1_score(gold, found, average="micro"),
            "macro_f1": f1_score(gold, found, average="macro"),
            "exact_match": accuracy_score(gold, found),
        }
    )
    table = list(zip(*task.tables(rows, sides[1])["classes"][1:], strict=True))[1:]
    for ours, theirs in zip(table, precision_recall_fscore_support(gold, found), strict=True):
        assert list(ours) == pytest.approx(list(theirs))


def labelled(count: int, seed: int) -> list[Row]:
    """Rows that have `good` by their word, `film` by their noun, both or neither; their order in files is another."""
    rows = []
    for row in rows_of(count, seed):
        labels = tuple(name for name, there in (("film", "film" in row.texts[0]), ("good", row.label == "1")) if there)
        rows.append(Row(row.id, row.texts, labels))
    return rows


def write(path, rows) -> str:
    path.write_text("\n".join(["text\tlabel", *(f"{row.texts[0]}\t{','.join(row.label[::-1])}" for row in rows)]))
    return str(path)


@pytest.fixture(scope="module")
def trained(directory, tmp_path_factory):
    """A run of the command, with its dev file."""
    place = tmp_path_factory.mktemp("trained")
    train, dev = write(place / "train.tsv", labelled(192, 1)), write(place / "dev.tsv", labelled(40, 2))
    given = ["--model", directory, "--train", train, "--dev", dev, "--out", place / "run", "--max-seqlen", 24]
    given += ["--epochs", 10, "--batch-size", 16, "--lr", 3e-3]
    assert main(list(map(str, ["finetune", "text-multilabel", *given]))) == 0
    return place / "run", dev


def test_it_learns_and_leaves_the_files_of_a_run(trained):
    run, _ = trained
    told = json.loads((run / "dev_metrics.json").read_text())
    assert told["micro_f1"] > 0.97
    assert told["exact_match"] > 0.95
    config = json.loads((run / "model" / "config.json").read_text())
    assert config["problem_type"] == "multi_label_classification"
    assert config["id2label"] == {"0": "film", "1": "good"}
    table = (run / "dev_classes.tsv").read_text().splitlines()
    assert [line.split("\t")[0] for line in table] == ["label", "film", "good"]
    lines = (run / "dev_predictions.tsv").read_text().splitlines()
    assert {line.split("\t")[1] for line in lines[1:]} == {"film", "good", "film,good", ""}


def test_transformers_computes_the_same_logits_loss_and_labels(trained):
    import transformers

    run, dev = trained
    rows = registry.get("text-multilabel").read(dev)
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(run / "model").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(run / "model")
    batch = tokenizer([row.texts[0] for row in rows], return_tensors="pt", padding=True)
    task = TextMultilabel(("film", "good"))
    labels = torch.tensor(np.stack([task.target(row.label) for row in rows])).float()
    ours = fastbert.BertForSequenceClassification.from_pretrained(run / "model").eval()
    with torch.no_grad():
        expected, got = theirs(**batch, labels=labels), ours(**batch, labels=labels)
    torch.testing.assert_close(got.logits, expected.logits)
    torch.testing.assert_close(got.loss, expected.loss)
    assert json.loads((run / "dev_metrics.json").read_text())["dev_loss"] == pytest.approx(
        float(expected.loss), rel=1e-4
    )
    classify = transformers.pipeline("text-classification", model=str(run / "model"), top_k=None)
    said = [
        ",".join(sorted(one["label"] for one in scores if one["score"] > 0.5))
        for scores in classify([row.texts[0] for row in rows])
    ]
    lines = (run / "dev_predictions.tsv").read_text().splitlines()[1:]
    assert said == [line.split("\t")[1] for line in lines]


def test_predictions_are_read_again(trained, tmp_path, capsys):
    run, dev = trained
    told = {}
    for name, given in (
        ("model", ["--model", run]),
        ("predictions", ["--predictions", run / "dev_predictions.tsv"]),
    ):
        capsys.readouterr()
        assert main(list(map(str, ["evaluate", "text-multilabel", "--data", dev, *given]))) == 0
        told[name] = json.loads(capsys.readouterr().out)
    assert told["model"].pop("loss") < 0.2
    assert told["model"] == told["predictions"]
    expected = json.loads((run / "dev_metrics.json").read_text())
    assert told["model"]["micro_f1"] == pytest.approx(expected["micro_f1"])


def hub_model(tmp_path, **changes):
    """A model of transformers with named classes, as its users publish them."""
    names = {0: "toxic", 1: "obscene", 2: "threat"}
    changes = {"problem_type": "multi_label_classification", "id2label": names, **changes}
    changes["label2id"] = {name: number for number, name in changes["id2label"].items()}
    return tiny_bert.save(tmp_path / "hub", "BertForSequenceClassification", **changes)


def test_a_model_of_transformers_predicts_and_is_evaluated(tmp_path, capsys):
    import transformers

    model, data = hub_model(tmp_path), tmp_path / "test.csv"
    rows = rows_of(12, 3)
    with open(data, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "comment_text", "toxic", "obscene", "threat"])
        writer.writerows([f"r{row.id}", row.texts[0], row.label, 0, 1] for row in rows)
    out, table = tmp_path / "out.tsv", tmp_path / "table.tsv"
    given = ["text-multilabel", "--model", model, "--data", data, "--text-columns", "comment_text"]
    assert main(list(map(str, ["predict", *given, "--out", out, "--probabilities", table]))) == 0
    theirs = transformers.BertForSequenceClassification.from_pretrained(model).eval()
    tokenizer = transformers.BertTokenizerFast(str(model / "vocab.txt"))
    batch = tokenizer([row.texts[0] for row in rows], return_tensors="pt", padding=True)
    hot = torch.tensor([[float(row.label), 0.0, 1.0] for row in rows])
    with torch.no_grad():
        expected = theirs(**batch, labels=hot)
    header, *lines = [line.split("\t") for line in table.read_text().splitlines()]
    assert header == ["index", "toxic", "obscene", "threat"]
    probabilities = expected.logits.sigmoid()
    got = torch.tensor([[float(x) for x in line[1:]] for line in lines])
    torch.testing.assert_close(got, probabilities, rtol=0, atol=2e-6)
    names = ["toxic", "obscene", "threat"]
    said = [",".join(sorted(n for n, p in zip(names, row, strict=True) if p > 0.5)) for row in probabilities.tolist()]
    assert [line.split("\t") for line in out.read_text().splitlines()[1:]] == [
        [f"r{row.id}", labels] for row, labels in zip(rows, said, strict=True)
    ]
    capsys.readouterr()
    assert main(list(map(str, ["evaluate", *given, "--label-columns", *names]))) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["loss"] == pytest.approx(float(expected.loss), rel=1e-5)
    assert told["macro_f1"] == pytest.approx(f1_score(hot, probabilities > 0.5, average="macro", zero_division=0))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"problem_type": "single_label_classification"},
            "expected a model of several labels a text, with the problem_type multi_label_classification in its",
        ),
        ({"problem_type": "regression"}, "multi_label_classification in its config.json, got regression"),
        (
            {"id2label": {0: "a, b", 1: "c", 2: "d"}},
            "task text-multilabel: expected labels without commas, semicolons and vertical bars, which separate them "
            "(--label-separator names another), got 'a, b'",
        ),
    ],
)
def test_a_model_that_does_not_fit_is_refused(tmp_path, capsys, changes, said):
    data = tmp_path / "data.tsv"
    data.write_text("text\nthe film is good\n")
    given = ["predict", "text-multilabel", "--model", str(hub_model(tmp_path, **changes)), "--data", str(data)]
    assert main(given) == 2
    assert said in capsys.readouterr().err
    if "id2label" in changes:
        assert main([*given, "--label-separator", "|", "--out", str(tmp_path / "out.tsv")]) == 0


def test_a_model_that_does_not_say_its_kind_is_told(caplog):
    registry.get("text-multilabel").restore(BertConfig(num_labels=3))
    assert "config.json names no problem_type, expected multi_label_classification" in caplog.text


def test_the_column_of_labels_takes_the_place_of_a_runs_columns(directory, tmp_path, capsys):
    """A model that was trained on columns of 0 and 1 is evaluated on a file with one column of labels."""
    rows, data = labelled(32, 1), tmp_path / "train.tsv"
    lines = [f"{row.texts[0]}\t{int('film' in row.label)}\t{int('good' in row.label)}" for row in rows]
    data.write_text("\n".join(["text\tfilm\tgood", *lines]))
    given = ["--model", directory, "--train", data, "--dev", data, "--out", tmp_path / "run", "--max-seqlen", 24]
    given += ["--label-columns", "film", "good", "--epochs", 1]
    assert main(list(map(str, ["finetune", "text-multilabel", *given]))) == 0
    other = write(tmp_path / "other.tsv", rows)
    told = []
    for more in ([data], [other, "--label-column", "label"]):
        capsys.readouterr()
        assert main(list(map(str, ["evaluate", "text-multilabel", "--model", tmp_path / "run", "--data", *more]))) == 0
        told.append(json.loads(capsys.readouterr().out))
    assert told[0] == told[1]


def test_a_training_goes_on_to_the_same_bits(directory, tmp_path):
    options = {"rows": (labelled(64, 1), labelled(40, 2)), "name": "text-multilabel", "epochs": 2}
    runs.run(directory, tmp_path / "whole", **options)
    runs.run(directory, tmp_path / "run", callbacks=runs.stop_after(11), **options)
    runs.run(directory, tmp_path / "run", resume="auto", **options)
    runs.assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_steps_cannot_be_those_of_fixed_shapes(directory):
    """The loss of each row counts, and that of an added one would too."""
    options = {"rows": (labelled(16, 1), labelled(8, 2)), "name": "text-multilabel", "epochs": 1}
    with pytest.raises(InputError, match="on is not possible: the loss of several labels a text has no way"):
        runs.run(directory, None, cuda_graph="on", **options)


def test_rows_without_any_label_are_refused(directory, tmp_path, capsys):
    data = tmp_path / "data.tsv"
    data.write_text("text\tlabel\nthe film\t\nthe book\t\n")
    given = ["--model", directory, "--train", data, "--dev", data, "--out", tmp_path / "run", "--max-seqlen", 24]
    assert main(list(map(str, ["finetune", "text-multilabel", *given]))) == 2
    assert "task text-multilabel needs at least one label, got none in all training rows" in capsys.readouterr().err
