"""text-multilabel: files in forms that could be misread without a word."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fastbert.cli._options import PredictOptions
from fastbert.cli._tasks import configure
from fastbert.config import BertConfig
from fastbert.errors import DataError, InputError
from fastbert.tasks.base import Example, Row, labels_of
from fastbert.tasks.config import TaskOptions
from fastbert.tasks.text_multilabel import TextMultilabel


def task_of(**options) -> TextMultilabel:
    task = TextMultilabel()
    task.configure(TaskOptions(**options))
    return task


@pytest.mark.parametrize(
    ("written", "labels"),
    [
        ("{'b', 'a'}", ("a", "b")),  # Python's sets and tuples
        ("('a',)", ("a",)),
        ("(2, 10)", ("2", "10")),
        ("(2,)", ("2",)),
        ("()", ()),
        ("[ ]", ()),
        ("{10, 2}", ("2", "10")),
        ("set()", ()),
        ("[sci fi, b]", ("b", "sci fi")),  # Spark's, without quotes
        ("['sci fi' 'b'\n 'c']", ("b", "c", "sci fi")),  # numpy's, without commas
        ('{"sci fi","b"}', ("b", "sci fi")),  # PostgreSQL's
        ("{b,a}", ("a", "b")),
        ("{}", ()),
        (r"""['it\'s "b"', "c's"]""", ("c's", """it's "b\"""")),
        (r'["caf\u00e9", "a\/b"]', ("a/b", "caf\u00e9")),  # JSON
        ("(R)-limonene", ("(R)-limonene",)),
    ],
)
def test_lists_as_programs_write_them_into_tables(written, labels):
    assert TextMultilabel().parse(written) == labels


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("frozenset({'a',\n'b'})", "expected labels, or a list of them in square brackets, got "),
        ("[it's, b]", "expected a list of labels, all of them in quotes or none, got "),
        (r"['C:\users', 'b']", "expected a label in quotes as Python or JSON writes it, got "),
        ("['it\\'s\nb']", "expected a label in quotes as Python or JSON writes it, got "),
    ],
)
def test_what_looks_like_a_list_and_is_none_is_refused(written, said):
    with pytest.raises(ValueError, match=said):
        TextMultilabel().parse(written)


BITS = (
    *(["[1, 0]", "[0, 1]"], ["[1.0, 0.0]", "[0.0, 1.0]"], ["[1. 0.]", "[0. 1.]"]),
    *(["[True, False]", "[False, True]"], ["1,0", "0,1"]),
)


@pytest.mark.parametrize("written", BITS)
def test_zeros_and_ones_of_two_labels_are_not_lists_of_labels(tmp_path, written):
    """Read as such, every row would have both labels."""
    path = tmp_path / "data.tsv"
    path.write_text("text\tlabel\n" + "".join(f"A\t{bits}\n" for bits in written))
    with pytest.raises(
        DataError, match=f"^{path}: expected lists of labels, got .* in every row: zeros and ones that say"
    ):
        TextMultilabel().read(path)
    if "1" in written[0].strip("[]").replace(" ", "").split(","):
        with pytest.raises(DataError, match="got LABEL_0 and LABEL_1 in every row: zeros and ones"):
            TextMultilabel(("LABEL_0", "LABEL_1")).read(path)
        assert [row.label for row in TextMultilabel(("0", "1", "2")).read(path)] == [("0", "1")] * 2
    predicting = TextMultilabel()
    predicting.predicting = True
    assert [len(row.label) for row in predicting.read(path)] == [2, 2]
    for lines, counts in ([*written, ""], [2, 2, 0]), (written[:1], [2]):  # of one row nobody can tell
        path.write_text("text\tlabel\n" + "".join(f"A\t{bits}\n" for bits in lines))
        assert [len(row.label) for row in TextMultilabel().read(path)] == counts


def test_zeros_and_ones_with_blanks_between_them_are_told(tmp_path, caplog):
    path = tmp_path / "train.tsv"
    path.write_text("text\tlabel\nA\t0 1 0\nB\t1 0 0\n")
    task = TextMultilabel()
    task.for_training(task.read(path), path)
    assert "the label '0 1 0' is several others with blanks between them" in caplog.text


@pytest.mark.parametrize(
    ("labels", "columns", "said"),
    [
        (["a,b", "A", "b", "a"], ("text",), "the labels A and a are one word in two spellings"),
        (["a,b", "nan", "b", "a"], ("text",), "the label of 1 row is nan, which is taken for a class"),
        ([f"{n},a{n}" for n in range(20)], ("text",), "got 40 labels in 20 rows: text-regression estimates numbers"),
        (["tags", *["a,b", "b"] * 5], ("1",), "the label of its first row, tags, occurs in no other row"),
        (["", "a,b", "b", "a"], ("text",), ""),
        (["", *["a,b", "b"] * 5], ("1",), ""),
        (["tags,a", *["a,b", "b"] * 5], ("1",), ""),
        ([f"{n},{n + 1},{n + 2},{n + 3}" for n in (0, 4, 8, 12, 16)] * 2, ("text",), ""),  # each of 20 labels twice
    ],
)
def test_labels_that_look_wrong_are_told_as_in_text_classification(tmp_path, caplog, labels, columns, said):
    rows = [Row(str(index), ("x",), TextMultilabel().parse(written)) for index, written in enumerate(labels)]
    task_of(text_columns=columns).for_training(rows, tmp_path / "train.tsv")
    assert said in caplog.text
    assert bool(said) == bool(caplog.text)


def test_a_row_without_labels_and_columns_that_are_alike_are_no_reason_to_warn(tmp_path, caplog):
    rows = [Row("0", ("x",), None), *(Row(str(n), ("x",), label) for n, label in enumerate([("A",), ("a",)], 1))]
    task = task_of(label_columns=("A", "a"))
    assert task.for_training(rows, tmp_path / "train.tsv") == rows
    assert not caplog.text
    task_of(label_separator="|").for_training([Row("0", ("x",), ("a b", "a"))], tmp_path / "train.tsv")
    assert not caplog.text


def test_a_labels_number_in_quotes_is_that_of_its_name():
    """As a Parquet file has it whose column of classes was turned into texts."""
    assert TextMultilabel().label_of("1", ("joy", "anger")) == ("anger",)


def test_labels_that_cannot_be_read_do_not_matter_for_predictions(tmp_path):
    for content, options in (
        ('{"text": "A", "label": [true]}\n', {}),
        ('{"text": "A", "a": 2, "b": 0}\n', {"label_columns": ("a", "b")}),
    ):
        (tmp_path / "data.jsonl").write_text(content)
        task = task_of(**options)
        task.predicting = True
        assert [row.label for row in task.read(tmp_path / "data.jsonl")] == [None]


def test_a_separator_with_blanks_around_it_is_one_without_them():
    task = task_of(label_separator=" | ")
    assert task.parse("a |b") == ("a", "b")
    assert task.show(("a", "b")) == "a | b"
    with pytest.raises(ValueError, match=r"expected labels without ' \| ', which separate them"):
        task.label_of(["a|b"], ())


@pytest.mark.parametrize("labels", [("[x]",), ("[a", 'b"]'), ("{x}",), ("set()",), ("array(1)",), ("(2)",), ("a", "b")])
def test_predictions_are_read_as_they_were_written(labels):
    """JSON may have labels that a table's cell could not."""
    task = TextMultilabel()
    assert task.parse(task.show(labels)) == task.label_of(list(labels), ()) == labels


def test_a_label_needs_a_probability_above_a_half():
    task, logits = TextMultilabel(("a", "b", "c")), [np.array([0.0, 1e-6, -100.0], np.float32)]
    rows = [Row("0", ("x",), None)]
    assert task.decode(rows, [], logits) == [("b",)]
    assert list(task.probabilities(rows, [], logits)) == [
        ("0", 0.5, pytest.approx(0.5), pytest.approx(np.exp(-100), abs=0))
    ]


def test_a_column_whose_label_is_nowhere_counts_as_without_a_model():
    """Otherwise macro F1 would not be that of the same predictions with the model."""
    rows = [Row("0", ("x",), ("a",))]
    assert task_of(label_columns=("a", "b")).metric(rows, [("a",)])["macro_f1"] == 0.5


def test_columns_of_labels_keep_their_capitals_below_a_text_column_with_one(tmp_path):
    path = tmp_path / "data.csv"
    path.write_text("ID,Text,Toxic,threat\nx,A,1,0\n")
    [row] = task_of(label_columns=("Toxic", "threat")).read(path)
    assert row == Row("x", ("A",), ("Toxic",))


def test_a_column_of_labels_is_none_of_ids(tmp_path):
    path = tmp_path / "data.tsv"
    path.write_text("text\ta\tid\nA\t1\t0\nB\t0\t0\n")
    assert task_of(label_columns=("a", "id")).read(path) == [Row("0", ("A",), ("a",)), Row("1", ("B",), ())]


def test_columns_whose_names_have_commas(tmp_path):
    path, predicted = tmp_path / "data.csv", tmp_path / "predicted.tsv"
    path.write_text('text,"failure, heart",b\nA,1,1\n')
    names = ("failure, heart", "b")
    with pytest.raises(DataError, match=r"expected labels without commas, .* \(--label-separator names another\)"):
        task_of(label_columns=names).read(path)
    task = task_of(label_columns=names, label_separator="|")
    rows = task.read(path)
    task.write_predictions(rows, [row.label for row in rows], predicted)
    assert predicted.read_text() == "index\tprediction\n0\tb|failure, heart\n"
    assert task.read_predictions(rows, predicted) == [("b", "failure, heart")]


def test_a_separator_leaves_the_columns_of_the_run_and_a_column_its_separator():
    for trained, given, expected in (
        (
            {"label_columns": ("a", "b")},
            {"label_separator": "|"},
            {"label_columns": ("a", "b"), "label_separator": "|"},
        ),
        (
            {"label_column": "tags", "label_separator": " "},
            {"label_column": "topics"},
            {"label_column": "topics", "label_separator": " "},
        ),
        ({"label_columns": ("a", "b")}, {"label_column": "tags"}, {"label_columns": None, "label_column": "tags"}),
    ):
        task = TextMultilabel(("a", "b"))
        configure(task, PredictOptions(**given), trained)
        assert {name: getattr(task, name) for name in expected} == expected


def test_labels_take_a_byte_each_until_they_are_collated():
    """45,000 rows of EUR-Lex with 4,271 labels have 190 MB; as Python's numbers they would have 6 GB."""
    task = TextMultilabel(tuple("abc"))
    examples = [
        Example(index, np.zeros(2, np.int32), np.zeros(2, np.int8), label=task.target(label))
        for index, label in enumerate([("c", "a"), ()])
    ]
    assert [example.label.nbytes for example in examples] == [3, 3]
    # The loss of a model that does not say its kind depends on their dtype.
    torch.testing.assert_close(labels_of(examples)["labels"], torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]]))
    unknown = Example(2, np.zeros(2, np.int32), np.zeros(2, np.int8))
    assert labels_of([*examples, unknown]) == {}


def test_a_model_with_one_name_for_two_labels_is_refused():
    config = BertConfig(problem_type="multi_label_classification", id2label={0: "a", 1: "b", 2: "a"})
    with pytest.raises(InputError, match="task text-multilabel: expected an id2label of different names, got a twice"):
        TextMultilabel().restore(config)


def test_the_order_of_a_rows_labels_does_not_matter():
    """In Python anybody can make rows."""
    task = TextMultilabel(("a", "b"))
    rows = [Row("0", ("x",), ("b", "a")), Row("1", ("x",), ["a"]), Row("2", ("x",), ())]
    assert task.metric(rows, [("a", "b"), ("a",), ("b",)])["exact_match"] == pytest.approx(2 / 3)


def test_rows_and_predictions_without_any_label():
    rows = [Row("0", ("x",), ())]
    assert TextMultilabel().metric(rows, [()]) == {"micro_f1": 0.0, "macro_f1": 0.0, "exact_match": 1.0}


def test_the_constant_answer_is_the_one_with_the_best_micro_f1():
    """All rows have a and half have b: a alone has 2 * 4 / (6 + 4), both have 2 * 6 / (6 + 8)."""
    rows = [Row(str(index), ("x",), label) for index, label in enumerate([("a", "b"), ("a",), ("a", "b"), ("a",)])]
    task = TextMultilabel(("a", "b", "c"))
    assert task.guess(rows) == [("a", "b")] * 4
    assert task.metric(rows, task.guess(rows))["micro_f1"] == pytest.approx(12 / 14)
    assert task.guess([Row("0", ("x",), ())]) == [()]
