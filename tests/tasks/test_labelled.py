"""Texts whose class is before them in a line, or the name of their directory."""

import io

import pytest
import tiny_bert

from fastbert.cli.main import main
from fastbert.errors import DataError
from fastbert.tasks import registry
from fastbert.tasks.bad_rows import BadRows
from fastbert.tasks.base import Row, require_labels
from fastbert.tasks.config import TaskOptions

TREC = "DESC:manner How did it go ?\nNUM:dist How far is it ?\n\n"


def task_of(label=None, skip=False, predicting=False):
    task = registry.get("text-classification")
    task.configure(TaskOptions(label_column=label))
    task.bad_rows, task.predicting = BadRows(skip), predicting
    return task


def tree(root, **texts):
    for name, text in texts.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return root


@pytest.mark.parametrize(
    ("label", "labels"),
    [(None, ["DESC", "NUM"]), ("coarse_label", ["DESC", "NUM"]), ("fine_label", ["DESC:manner", "NUM:dist"])],
)
def test_trec_s_questions_have_two_labels(label, labels, tmp_path, monkeypatch):
    path = tmp_path / "train_5500.label"
    path.write_text(TREC)
    rows = [Row("0", ("How did it go ?",), labels[0]), Row("1", ("How far is it ?",), labels[1])]
    assert task_of(label).read(path) == rows
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(TREC.encode())))
    assert task_of(label, predicting=True).read("-") == rows


@pytest.mark.parametrize("label", ["ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM"])
def test_any_of_trec_s_classes_may_be_the_first(label, tmp_path):
    path = tmp_path / "train_5500.label"
    path.write_text(f"{label}:other What ?\n")
    assert task_of().read(path) == [Row("0", ("What ?",), label)]


def test_a_line_of_another_form_is_a_bad_row(tmp_path):
    path = tmp_path / "train_5500.label"
    path.write_bytes(TREC.encode() + b"HUM:ind Who is \xf0 ?\nWho ?\nHUM:ind Who ?\n")
    with pytest.raises(DataError, match=r"line 4: expected UTF-8, got 0xf0 .*iconv"):
        task_of().read(path)
    task = task_of(skip=True)
    assert [(row.id, row.label) for row in task.read(path)] == [("0", "DESC"), ("1", "NUM"), ("4", "HUM")]
    assert "line 5: expected one label and a text, as in the first line, got 'Who ?'" in task.bad_rows.reasons[1]


@pytest.mark.parametrize(
    ("name", "options", "file", "line"),
    [
        ("text-classification", {}, "train.ft.txt", "__label__1 fine"),
        ("text-classification", {"text_columns": ("2",), "label_column": "1"}, "train.csv", "1,fine"),
        ("text-classification", {"text_columns": ("2",), "label_column": "1"}, "train.tsv", "1\tfine"),
        ("swag", {}, "dev.csv", "What?,a,b,c,d,A"),
        ("swag", {}, "codah.tsv", "o\tWhat\ta\tb\tc\td\t1"),
    ],
)
def test_rows_have_the_same_numbers_although_the_first_line_is_bad(name, options, file, line, tmp_path):
    path = tmp_path / file
    path.write_bytes(f"\xff{line}\n".encode("latin-1") + 2 * f"{line}\n".encode())
    task = registry.get(name)
    task.configure(TaskOptions(**options))
    task.bad_rows = BadRows(skip=True)
    assert [row.id for row in task.read(path)] == ["1", "2"]


def test_fasttext_s_lines(tmp_path):
    path = tmp_path / "train.ft.txt"
    path.write_text(" __label__2 Great CD: mine\n__label__1 __label__2 both\n__label__1\tBad\n")
    task = task_of(skip=True)
    assert task.read(path) == [Row("0", ("Great CD: mine",), "2"), Row("2", ("Bad",), "1")]
    assert "line 2: expected one label" in task.bad_rows.reasons[0]


def test_sentiment_trees_have_the_class_of_their_root(tmp_path):
    path = tmp_path / "train.txt"
    path.write_text("(3 (2 (2 The) (1 -LRB-)) (4 (2 is) (2 so)))\n(2 Ja)\n(0 no)\tx\n")
    task = task_of(skip=True)
    assert task.read(path) == [Row("0", ("The -LRB- is so",), "3"), Row("1", ("Ja",), "2")]
    assert "line 3: expected one label" in task.bad_rows.reasons[0]


def test_words_of_sentiment_trees_may_have_a_no_break_space(tmp_path):
    path = tmp_path / "train.txt"
    path.write_text("(3 (2 (2 nearly) (2 8\xa01\\/2)) (2 .))\n(2 8\xa01\\/2)\n(2 (2 a) (2 b c))\n", encoding="utf-8")
    task = registry.get("text-classification")
    task.bad_rows = BadRows(skip=True)
    assert [(row.texts[0], row.label) for row in task.read(path)] == [("nearly 8\xa01\\/2 .", "3"), ("8\xa01\\/2", "2")]
    assert task.bad_rows.reasons[0].endswith(
        "line 3: expected a tree of words, each with its class, got '(2 (2 a) (2 b c))'"
    )


def test_lines_are_looked_at_where_columns_have_no_names(tmp_path):
    """A text may look so too, in a column of its own."""
    path = tmp_path / "f.tsv"
    path.write_text("text\tlabel\nNUM:dist How far ?\tx\n")
    assert task_of().read(path) == [Row("0", ("NUM:dist How far ?",), "x")]
    task = registry.get("text-classification")
    task.configure(TaskOptions(text_columns=("1",), label_column="2"))
    path.write_text("NUM:dist How far ?\tx\n")
    assert task.read(path) == [Row("0", ("NUM:dist How far ?",), "x")]


def test_a_directory_for_each_class(tmp_path, caplog):
    tree(
        tmp_path,
        pos__1_9="good",
        pos__0_8=" fine\n\nfilm ",
        pos__2_7="third",
        neg__0_2="\ufeffbad",
        neg__2_1=b"\xff",
        unsup__0_0="x",
        urls="y",
        pos__more__0="z",
        **{".git__0": "hidden", "neg__.DS_Store": b"\0\xff"},
    )
    with pytest.raises(DataError, match="neg/2_1, line 1: expected UTF-8, got 0xff"):
        task_of().read(tmp_path)
    rows = task_of(skip=True).read(tmp_path)
    expected = [("neg/0_2", "bad", "neg"), ("pos/0_8", "fine\n\nfilm", "pos"), ("pos/1_9", "good", "pos")]
    expected.append(("pos/2_7", "third", "pos"))  # of a class that has more than others
    assert rows == [Row(name, (text,), label) for name, text, label in expected]
    assert "unsup: texts without a class are left out" in caplog.text


def test_directories_of_other_forms(tmp_path):
    tree(tmp_path, train__pos__0="a", train__neg__0="b", flat__0="c", rest__unsup__0="d")
    for path in (tmp_path, tmp_path / "rest"):
        with pytest.raises(DataError, match=r"expected a directory for each class, .*, got no files in .*(train|rest)"):
            task_of().read(path)
    task = task_of()
    assert task.read(tmp_path / "flat") == [Row("0", ("c",))]
    with pytest.raises(DataError, match="flat: expected labels in the column label, got none in all rows"):
        require_labels(task, task.read(tmp_path / "flat"), tmp_path / "flat")


@pytest.mark.parametrize(
    "names", [["train__0.parquet"], ["0.parquet", "1.jsonl"], ["data__0.json", "data__1.ndjson.gz"]]
)
def test_a_directory_of_a_hub_s_files(tmp_path, names):
    tree(tmp_path, **dict.fromkeys(names, "x"))
    with pytest.raises(
        DataError, match=r"a file for each text, got files of many rows \(0\.(parquet|json)\): name them"
    ):
        task_of().read(tmp_path)


def test_a_run_on_directories(tmp_path, capsys):
    model = tiny_bert.save(tmp_path / "model", num_hidden_layers=1)
    train = tree(tmp_path / "train", pos__0="good film", pos__1="fine", neg__0="bad film", neg__1="dull")
    given = ["--model", str(model), "--train", str(train), "--dev", str(train), "--out", str(tmp_path / "run")]
    assert main(["finetune", "text-classification", *given, "--epochs", "1", "--max-seqlen", "16"]) == 0
    capsys.readouterr()
    run = ["text-classification", "--model", str(tmp_path / "run"), "--data", str(train)]
    assert main(["predict", *run]) == 0
    names = [line.split("\t")[0] for line in capsys.readouterr().out.splitlines()]
    assert names == ["index", "neg/0", "pos/0", "neg/1", "pos/1"]
    assert main(["evaluate", *run]) == 0
