"""File formats of tasks with their traps, metrics, and the registry."""

import io
import json

import numpy as np
import pytest
from sklearn.metrics import accuracy_score

from fastbert.config import BertConfig
from fastbert.errors import DataError, InputError
from fastbert.tasks import registry
from fastbert.tasks.bad_rows import BadRows
from fastbert.tasks.base import Row, require_labels
from fastbert.tasks.text_classification import TextClassification


def write(tmp_path, content: bytes, name="f.tsv"):
    path = tmp_path / name
    path.write_bytes(content)
    return path


def test_sst2_on_the_real_files(shared_data):
    task = registry.get("sst2")
    dev = task.read(shared_data / "sst2" / "dev.tsv")
    train = task.read(shared_data / "sst2" / "train.tsv")
    assert (len(dev), len(train)) == (872, 67_349)
    assert sum(row.label == "1" for row in train) == 37_569
    assert dev[0] == Row("0", ("it 's a charming and often affecting journey .",), "1")
    assert all(text == text.strip() for row in train for text in row.texts)


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
def test_sst2_line_ends_blanks_and_byte_order_mark(tmp_path, end, bom):
    path = write(tmp_path, bom + end.join([b"sentence\tlabel", b'a "good" film \t1', b"caf\xc3\xa9 \t0", b""]))
    assert registry.get("sst2").read(path) == [Row("0", ('a "good" film',), "1"), Row("1", ("café",), "0")]


def test_sst2_test_file_has_its_own_index(tmp_path):
    task = registry.get("sst2")
    rows = task.read(write(tmp_path, b"index\tsentence\n7\tgood\n3\tbad\n"))
    assert rows == [Row("7", ("good",)), Row("3", ("bad",))]
    with pytest.raises(DataError, match="expected a column label"):
        require_labels(task, rows, "f.tsv")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"good\t2", "line 3: expected the label to be one of 0, 1, got '2'"),
        (b"good\t", "line 3: expected the label to be one of 0, 1, got ''"),
        (b" \t1", "line 3: expected a text"),
        (b"good 1", "line 3: expected 2 tab-separated columns"),
        (b"go\xe9d\t1", "line 3: expected UTF-8, got 0xe9"),
    ],
)
def test_sst2_bad_rows_are_named(tmp_path, line, reason):
    path = write(tmp_path, b"sentence\tlabel\nfine\t1\n" + line + b"\n")
    with pytest.raises(DataError, match=reason) as caught:
        registry.get("sst2").read(path)
    assert str(path) in str(caught.value)


def test_sst2_without_header_is_not_read_as_data(tmp_path):
    with pytest.raises(DataError, match="line 1: expected the header"):
        registry.get("sst2").read(write(tmp_path, b"good\t1\nbad\t0\n"))


def test_submission_format_and_back(tmp_path):
    task = registry.get("sst2")
    rows = [Row("4", ("a",)), Row("2", ("b",))]
    path = tmp_path / "SST-2.tsv"
    task.write_predictions(rows, ["1", "0"], path)
    assert path.read_bytes() == b"index\tprediction\n4\t1\n2\t0\n"
    assert task.read_predictions(rows[::-1], path) == ["0", "1"]


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (b"0\t1\n", "missing 1"),
        (b"0\t1\n1\t1\n5\t0\n", "unknown 5"),
        (b"0\t1\n0\t1\n", "line 3: index 0 occurs twice"),
        (b"0\t1\n1\tyes\n", "line 3: expected the label"),
    ],
)
def test_predictions_that_do_not_fit(tmp_path, lines, reason):
    rows = [Row("0", ("a",), "1"), Row("1", ("b",), "0")]
    with pytest.raises(DataError, match=reason):
        registry.get("sst2").read_predictions(rows, write(tmp_path, b"index\tprediction\n" + lines))


def test_accuracy_is_sklearns():
    rng = np.random.default_rng(0)
    gold, predicted = rng.integers(0, 2, (2, 501)).astype(str)
    rows = [Row(str(i), ("x",), label) for i, label in enumerate(gold)]
    assert registry.get("sst2").metric(rows, list(predicted)) == {"accuracy": accuracy_score(gold, predicted)}


def test_decode_takes_the_largest_logit():
    outputs = [np.array([0.1, -2.0]), np.array([-1.0, 3.0])]
    assert registry.get("sst2").decode([], [], outputs) == ["0", "1"]


def test_errors_lists_only_what_was_wrong():
    rows = [Row("0", ("a",), "1"), Row("1", ("b",), "0")]
    assert list(registry.get("sst2").errors(rows, ["1", "1"])) == [
        {"id": "1", "texts": ["b"], "label": "0", "prediction": "1"}
    ]


def test_text_classification_learns_and_restores_its_labels(tmp_path):
    tsv = write(tmp_path, b"text\tlabel\nx\tnews\ny\tart\nz\tnews\n")
    jsonl = write(tmp_path, b'{"text": "x", "label": "news", "id": 9}\n{"text": "y", "label": 3}\n', "f.jsonl")
    task = TextClassification()
    task.learn(task.read(tsv))
    assert task.labels == ("art", "news")
    with pytest.raises(DataError, match=r"f\.jsonl, line 2: expected the label to be one of art, news, got '3'"):
        task.read(jsonl)
    assert TextClassification().read(jsonl) == [Row("9", ("x",), "news"), Row("1", ("y",), "3")]
    again = TextClassification()
    again.restore(BertConfig(**task.head()))
    assert again.labels == task.labels
    # Of twelve: the keys of config.json are texts, of which "10" would stand before "2".
    many, again = TextClassification([f"class {n}" for n in range(12)]), TextClassification()
    again.restore(BertConfig.from_dict(json.loads(json.dumps(BertConfig(**many.head()).to_dict(), sort_keys=True))))
    assert again.labels == many.labels


@pytest.mark.parametrize(
    ("name", "good"),
    [
        ("text-classification", b'{"text": "x", "label": "a"}'),
        ("rte", b'{"premise": "A", "hypothesis": "B", "label": 0}'),
        ("ner", b'{"tokens": ["a"], "ner_tags": ["O"]}'),
        ("swag", b'{"ctx_a": "A", "ctx_b": "b", "endings": ["c", "d", "e", "f"], "label": 0}'),
    ],
)
def test_rows_that_cannot_be_read_shift_no_numbers(tmp_path, name, good):
    task = registry.get(name)
    task.bad_rows = BadRows(skip=True)
    path = write(tmp_path, b"\n".join([b"{half", good, good.replace(b"a", b"\xe9"), b"{}", good]), "f.jsonl")
    assert [row.id for row in task.read(path)] == ["1", "4"]
    assert len(task.bad_rows.reasons) == 3


@pytest.mark.parametrize(
    ("name", "header", "good", "broken"),
    [
        ("rte", b"sentence1,sentence2,label", b"A,B,0", b"A,B"),
        ("swag", b"sent1,sent2,ending0,ending1,ending2,ending3,label", b"a,b,c,d,e,f,0", b"a"),
        ("swag", b"x\ta\tb\tc\td\te\t0", b"x\ta\tb\tc\td\te\t0", b"x\ta"),
    ],
)
def test_lines_that_cannot_be_read_shift_no_numbers(tmp_path, name, header, good, broken):
    task = registry.get(name)
    task.bad_rows = BadRows(skip=True)
    unread = good[:-1] + b"\xe9"
    path = write(tmp_path, b"\n".join([header, unread, good, broken, unread, b"", good, unread]), "f.csv")
    rows = [int(row.id) for row in task.read(path)]
    assert rows == ([1, 4] if b"," in good else [0, 2, 5])
    assert len(task.bad_rows.reasons) == 4


def test_rows_that_are_all_bad_say_why(tmp_path):
    task = registry.get("text-classification")
    task.bad_rows = BadRows(skip=True)
    path = write(tmp_path, b'{"text": 3}\n[]\n', "f.jsonl")
    with pytest.raises(DataError, match=r"none that can be used; the first is bad: .*line 1: expected texts in text"):
        task.read(path)


@pytest.mark.parametrize("name", ["sst2", "cola", "text-classification", "swag", "ner"])
def test_lines_that_are_all_unreadable_are_no_empty_file(tmp_path, name):
    for content, reason in (("a\tb\n".encode("utf-16-le"), "a NUL byte"), (b"\xe9\n\xe9\n", "0xe9 at byte 1")):
        task = registry.get(name)
        task.bad_rows = BadRows(skip=True)
        expected = f"none that can be used; the first is bad: .*line 1: expected UTF-8, got {reason}"
        with pytest.raises(DataError, match=expected):
            task.read(write(tmp_path, content, "f.csv"))


def test_a_line_with_a_nul_byte_is_a_bad_row(tmp_path):
    path = write(tmp_path, b"sentence\tlabel\na\t1\nb\0c\t0\nd\t0\n")
    task = registry.get("sst2")
    with pytest.raises(DataError, match="line 3: expected UTF-8, got a NUL byte"):
        task.read(path)
    task.bad_rows = BadRows(skip=True)
    assert task.read(path) == [Row("0", ("a",), "1"), Row("2", ("d",), "0")]
    assert len(task.bad_rows.reasons) == 1


def test_text_classification_without_text(tmp_path):
    with pytest.raises(DataError, match=r"line 1: expected the column text, got label \(--text-columns and "):
        TextClassification().read(write(tmp_path, b'{"label": "a"}\n', "f.jsonl"))


@pytest.mark.parametrize("label", ['["a", "b"]', "[]", "[[1]]", '{"a": 1}', "NaN", '"a\\tb"'])
def test_what_is_no_label_is_no_class_of_its_own(label, tmp_path):
    path = write(tmp_path, b'{"text": "x", "label": %s}\n{"text": "y", "label": "a"}\n' % label.encode(), "f.jsonl")
    task = TextClassification()
    with pytest.raises(DataError, match="line 1: expected one label, without tabs or line ends, got "):
        task.read(path)
    task.predicting = True
    assert [row.label for row in task.read(path)] == [None, "a"]


def test_a_carriage_return_is_no_part_of_a_label(tmp_path):
    """A model of such a class would be refused, when it has been trained."""
    path = write(tmp_path, b"text\tlabel\nx\ta\rb\ny\tc\r\n")
    task = TextClassification()
    with pytest.raises(DataError, match=r"line 2: expected one label, without tabs or line ends, got 'a\\rb'"):
        task.read(path)
    task.bad_rows = BadRows(skip=True)
    assert task.read(path) == [Row("1", ("y",), "c")]


LABELS_OF_NO_USE = {
    "swag": ("f.csv", "sent1,sent2,ending0,ending1,ending2,ending3,label\na,b,c,d,e,f,7\na,b,c,d,e,f,2\n"),
    "ner": ("f.txt", "EU S-ORG\nrejects O\n\nPeter B-PER\n"),
    "squad1": (
        "f.json",
        json.dumps({"data": [{"paragraphs": [{"context": "a b", "qas": [
            {"id": "1", "question": "q", "answers": [], "is_impossible": True},
            {"id": "2", "question": "q", "answers": [{"text": "b", "answer_start": 2}]},
        ]}]}]}),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LABELS_OF_NO_USE)
def test_labels_that_are_none_are_no_reason_to_refuse_a_row_that_is_predicted(name, tmp_path):
    file, text = LABELS_OF_NO_USE[name]
    task, path = registry.get(name), write(tmp_path, text.encode(), file)
    with pytest.raises(DataError):
        task.read(path)
    task.predicting = True
    assert [row.label is None for row in task.read(path)] == [True, False]


def test_tags_of_hubs_that_are_none_are_no_reason_either(tmp_path):
    path = write(
        tmp_path, b'{"tokens": ["EU"], "ner_tags": ["X-ORG"]}\n{"tokens": ["a"], "ner_tags": ["O"]}\n', "f.jsonl"
    )
    task = registry.get("ner")
    with pytest.raises(DataError, match="expected tags O, B-TYPE or I-TYPE"):
        task.read(path)
    task.predicting = True
    assert [row.label for row in task.read(path)] == [None, ("O",)]


def test_one_label_is_no_classification():
    with pytest.raises(InputError, match="at least two labels"):
        TextClassification(["only"]).head()


@pytest.mark.parametrize(
    ("name", "typed"),
    [
        ("rte", b"index\tsentence1\tsentence2\tlabel\n0\ta\tb\tmaybe\n"),
        ("sst2", b"sentence\tlabel\na film\tmaybe\n"),
        ("rte", b"idx,premise,hypothesis\n0,a film\n"),
        ("ner", b"a O\nb\n"),
        ("ner", b"\n"),
        ("swag", b"a film\n"),
        ("squad1", b"{"),
        ("squad1", b'{"data": [3]}'),
        ("squad1", b"who came\n"),
    ],
)
def test_standard_input_is_called_that(name, typed, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(typed)))
    with pytest.raises(DataError, match=r"^standard input[,:]"):
        registry.get(name).read("-")


@pytest.mark.parametrize(
    ("typed", "got"),
    [
        ('{"tokens": ["John", "lives"]}\n', r"got JSON, which is read from a file called \.jsonl: "),
        ('\n{"id": 1, "words": ["John"], "tags": null}\n', r"got JSON, .* \.jsonl: "),
        ('["John", "lives"]\n["She", "works"]\n', r"got JSON, .* \.jsonl: "),
        ('[\n {"tokens": ["John"]}\n]\n', r"got JSON, .* \.jsonl: '\['$"),
        ("John lives in Berlin\n", "got several: 'John lives in Berlin'; --sentences reads a sentence a line$"),
        ("John lives in Berlin\n\nShe works\n", "and an empty line after each sentence, got several: 'John"),
    ],
)
def test_words_are_one_a_line(typed, got, monkeypatch, tmp_path):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(typed.encode())))
    task = registry.get("ner")
    task.predicting = True
    path = tmp_path / "test.txt"
    path.write_text(typed)
    for read, called in (("-", "standard input"), (path, str(path))):
        with pytest.raises(DataError, match=rf"^{called}, line [12]: expected a word a line.* {got}") as refused:
            task.read(read)
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("John\nlives\n", [("John", "lives")]),
        ("John\n\nShe\n", [("John",), ("She",)]),
        ("John NNP B-PER\n", [("John",)]),
        ("John NNP\nlives VBZ\n", [("John", "lives")]),
        ("[1]\nJohn\n", [("[1]", "John")]),
        ("[\nsic\n]\n", [("[", "sic", "]")]),
        ("{\n}\n", [("{", "}")]),
    ],
)
def test_words_on_standard_input(typed, words, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(typed.encode())))
    assert [row.texts for row in registry.get("ner").read("-")] == words


def test_unknown_task_lists_the_known():
    with pytest.raises(InputError, match="no such task: sst3; known are cola, sst2, "):
        registry.get("sst3")


_COLUMN = "{}, line 1: expected a column %s with the label of every row, got the columns %s"
_NAMED = _COLUMN + " (--label-column names another)"


@pytest.mark.parametrize(
    ("name", "file", "content", "reason"),
    [
        ("sst2", "f.tsv", "index\tsentence\n7\tgood\n", _NAMED % ("label", "index, sentence")),
        (
            "mrpc",
            "f.tsv",
            "#1 String\t#2 String\tclass\na\tb\t1\n",
            _NAMED % ("Quality", "#1 String, #2 String, class"),
        ),
        (
            "mnli",
            "f.jsonl",
            '{"premise": "a", "hypothesis": "b", "gold": 1}\n',
            _NAMED % ("gold_label or label", "premise, hypothesis, gold"),
        ),
        (
            "mnli",
            "f.csv",
            "premise,hypothesis,label\na,b,-1\n",
            "{}: expected labels in the column label, got none in all rows",
        ),
        (
            "swag",
            "f.csv",
            "sent1,sent2,ending0,ending1,ending2,ending3\na,b,c,d,e,f\n",
            _COLUMN % ("label", "sent1, sent2, ending0, ending1, ending2, ending3"),
        ),
        (
            "swag",
            "f.jsonl",
            '{"ctx_a": "a", "ctx_b": "b", "endings": ["c", "d", "e", "f"]}\n',
            _COLUMN % ("label", "ctx_a, ctx_b, endings"),
        ),
        (
            "swag",
            "f.tsv",
            "i\ta\tb\tc\td\te\n",
            "{}: expected labels as the last of CODAH's columns, got a file without them",
        ),
        ("text-classification", "f.jsonl", '{"text": "a", "class": 1}\n', _NAMED % ("label", "text, class")),
        (
            "squad1",
            "f.json",
            '{"data": [{"paragraphs": [{"context": "a", "qas": [{"id": "1", "question": "b"}]}]}]}',
            "{}: expected the key 'answers' in every question, got a file without them",
        ),
        (
            "ner",
            "f.txt",
            "a\nb\n",
            "{}: expected tags (O, B-TYPE or I-TYPE) in the last of several columns, got words alone (JSON and Parquet "
            "have tags under ner_tags, tags or labels)",
        ),
        (
            "ner",
            "f.txt",
            "Bonn b-loc\nis o\n",
            "{}: expected tags (O, B-TYPE or I-TYPE) in the last of several columns, got lines such as 'Bonn b-loc'",
        ),
    ],
)
def test_a_file_without_labels_is_told_with_the_columns(tmp_path, name, file, content, reason):
    task, path = registry.get(name), write(tmp_path, content.encode(), file)
    rows = task.read(path)
    assert [row.label for row in rows] == [None] * len(rows)
    with pytest.raises(DataError) as caught:
        require_labels(task, rows, path)
    assert str(caught.value) == reason.format(path)
