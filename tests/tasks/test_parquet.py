"""Parquet as data-set hubs publish it: every task's columns, names of classes, and what cannot be read."""

from __future__ import annotations

import json
import sys

import pyarrow as pa
import pytest
import tiny_bert
from hub_files import parquet

from fastbert.cli.main import main
from fastbert.errors import DataError, InputError
from fastbert.tasks import registry
from fastbert.tasks.bad_rows import BadRows
from fastbert.tasks.base import Row
from fastbert.tasks.conll import Sentence
from fastbert.tasks.hub_files import BATCH


@pytest.fixture
def read(tmp_path):
    def read(task: str, content: bytes, skip: bool = False) -> list[Row]:
        path = tmp_path / "train-00000-of-00001.parquet"
        path.write_bytes(content)
        made = registry.get(task)
        made.bad_rows = BadRows(skip=skip)
        rows = made.read(path)
        reasons[:] = made.bad_rows.reasons
        return rows

    reasons: list[str] = []
    read.reasons = reasons
    return read


PAIR = {"premise": "A", "hypothesis": "B"}
NLI = {"label": ["entailment", "neutral", "contradiction"]}
FIVE = {"label": ["bad", "slightly bad", "neutral", "slightly good", "good"]}


@pytest.mark.parametrize(
    ("task", "values", "names", "label"),
    [
        # A file that numbers the classes in another order than GLUE, and one whose names are not the task's.
        ("mnli", PAIR | {"label": 0}, ["contradiction", "entailment", "neutral"], "contradiction"),
        ("mnli", PAIR | {"label": 0}, ["yes", "maybe", "no"], "entailment"),
        ("sst2", {"sentence": "A", "label": 0}, ["Positive", "Negative"], "1"),
        ("sst2", {"sentence": "A", "label": 0}, ["0", "1"], "0"),
        # A column with gaps is one of floats, or of texts.
        ("sst2", {"sentence": "A", "label": 0.0}, ["Positive", "Negative"], "1"),
        ("sst2", {"sentence": "A", "label": "0"}, ["Positive", "Negative"], "1"),
        ("mnli", PAIR | {"label": 1.0}, ["contradiction", "entailment"], "entailment"),
        ("mrpc", {"sentence1": "A", "sentence2": "B", "label": 1}, ["not_equivalent", "equivalent"], "1"),
        ("text-classification", {"text": "A", "label": 2}, ["World", "Sports", "Business"], "Business"),
        ("text-classification", {"text": "A", "label": 2.0}, ["World", "Sports", "Business"], "Business"),
        ("text-classification", {"text": "A", "label": "2"}, ["World", "Sports", "Business"], "Business"),
        ("text-classification", {"text": "A", "label": 2}, None, "2"),
        # Names that are numbers, of as many classes and of others; a text is a name before it is a number.
        ("mnli", PAIR | {"label": 1}, ["0", "1"], "neutral"),
        ("sst2", {"sentence": "A", "label": "1"}, ["1", "0"], "1"),
        ("sst2", {"sentence": "A", "label": 1}, ["1", "0"], "0"),
        # Names that labels have in ANLI, in XNLI's training files and in HANS.
        ("mnli", PAIR | {"label": 0}, ["c", "e", "n"], "contradiction"),
        ("mnli", PAIR | {"label": 2}, ["contradictory", "neutral", "entailment"], "entailment"),
        ("rte", PAIR | {"label": 0}, ["non-entailment", "entailment"], "not_entailment"),
        ("text-classification", {"sentence": "A", "label": "fine"}, None, "fine"),
        ("text-classification", {"text": "A", "label": [2]}, ["World", "Sports", "Business"], "Business"),
        ("text-classification", {"text": "A", "label": -1}, ["World", "Sports"], None),
        ("text-classification", {"text": "A", "label": "7 days"}, ["World", "Sports"], "7 days"),
        ("text-classification", {"text": "A", "label": "-2"}, ["-2", "1"], "-2"),
    ],
)
def test_the_names_of_classes_decide(task, values, names, label, read):
    [row] = read(task, parquet([values], classes=names and {"label": names}))
    assert row.label == label


@pytest.mark.parametrize(
    ("classes", "said"),
    [
        (["dup", "nodup"], "to be called not_duplicate, duplicate, got dup, nodup: they are taken in this order"),
        (["duplicate", "not_duplicate"], ""),
        (None, ""),
    ],
)
def test_unknown_names_of_as_many_classes_are_told(classes, said, read, caplog):
    pair = {"question1": "A", "question2": "B", "label": 0}
    with caplog.at_level("WARNING", "fastbert"):
        read("qqp", parquet([pair, pair], classes=classes and {"label": classes}))
    assert [message.split("expected its classes ")[1] for message in caplog.messages] == ([said] if said else [])


@pytest.mark.parametrize(
    ("task", "classes"),
    [("rte", ["not", "Entailment"]), ("mnli", ["entailment", "contradiction", "none"]), ("sst2", ["positive", "neg"])],
)
def test_a_known_name_in_another_place_is_refused(task, classes, read):
    """By the order, the label of its rows would be another class than the file says."""
    single = task == "sst2"
    values = {"sentence": "A"} if single else PAIR
    with pytest.raises(DataError, match=f"expected its classes to be .*, got {', '.join(classes)}, in which .* has an"):
        read(task, parquet([values | {"label": 0}], classes={"label": classes}))


def test_a_sentiment_of_minus_one_is_a_label_where_there_are_others(read):
    rows = read("text-classification", parquet([{"text": "A", "label": -1}, {"text": "B", "label": 1}]))
    assert [row.label for row in rows] == ["-1", "1"]


@pytest.mark.parametrize("kind", [int, float, str])
def test_minus_one_is_no_label_where_classes_have_names(kind, read):
    def content(label):
        labels = map(kind, (0, -1, label))
        return parquet([{"text": "A", "label": n} for n in labels], classes={"label": ["World", "Sports"]})

    assert [row.label for row in read("text-classification", content(1))] == ["World", None, "Sports"]
    for label in (2, -2):
        with pytest.raises(DataError, match=f"row 3: expected the number of a class from 0 to 1, .* got {kind(label)}"):
            read("text-classification", content(label))
        assert len(read("text-classification", content(label), skip=True)) == 2


def test_a_number_of_no_class_is_no_label_to_predict(tmp_path):
    path, task = tmp_path / "test.parquet", registry.get("text-classification")
    path.write_bytes(parquet([{"text": "A", "label": n} for n in (1, 7)], classes={"label": ["World", "Sports"]}))
    task.predicting = True
    assert [row.label for row in task.read(path)] == ["Sports", None]


def test_squad(read):
    context = "Z\u00fcrich lies by a lake."
    base = {"title": "t", "context": context, "question": "Where?"}
    types = {"answers": pa.struct({"text": pa.list_(pa.string()), "answer_start": pa.list_(pa.int32())})}
    answered = {"id": "a", **base, "answers": {"text": ["a lake", "lake"], "answer_start": [15, 17]}}
    none = {"id": "b", **base, "answers": {"text": [], "answer_start": []}}
    rows = read("squad2", parquet([answered, none], types))
    assert [(row.id, row.texts, row.label.texts, row.label.starts) for row in rows] == [
        ("a", ("Where?", context), ("a lake", "lake"), (15, 17)),
        ("b", ("Where?", context), (), ()),
    ]
    assert read("squad1", parquet([answered], types)) == rows[:1]
    with pytest.raises(DataError, match="parquet, row 2: expected every id once, got a again"):
        read("squad1", parquet([answered, answered], types))


def test_swag(read):
    values = {"sent1": "A man.", "sent2": "He", **{f"ending{i}": f"goes {i}." for i in range(4)}}
    rows = read("swag", parquet([values | {"label": 2}, values | {"label": -1}]))
    texts = ("A man.", *(f"He goes {i}." for i in range(4)))
    assert rows == [Row("0", texts, "2"), Row("1", texts, None)]


TAGS = ["O", "B-PER", "I-PER"]


@pytest.mark.parametrize("numbers", [True, False])
def test_ner(numbers, read, tmp_path):
    tags = [[1, 2, 0], [0]]
    if not numbers:
        tags = [[TAGS[tag] for tag in sentence] for sentence in tags]
    records = [{"tokens": words, "ner_tags": t} for words, t in zip([["Ann", "Lee", "left"], ["."]], tags, strict=True)]
    rows = read("ner", parquet(records, classes={"ner_tags": TAGS} if numbers else None))
    assert [(row.texts, row.label) for row in rows] == [
        (("Ann", "Lee", "left"), ("B-PER", "I-PER", "O")),
        ((".",), ("O",)),
    ]
    path = tmp_path / "tagged.txt"
    registry.get("ner").write_predictions(rows, [("B-PER", "O", "O"), ("O",)], path)
    assert path.read_text() == "Ann B-PER B-PER\nLee I-PER O\nleft O O\n\n. O O\n\n"
    assert registry.get("ner").read_predictions(rows, path) == [("B-PER", "O", "O"), ("O",)]


@pytest.mark.parametrize("labelled", [True, False])
def test_a_row_without_words_is_as_a_blank_line(labelled, read):
    """Sets that were made from a file which ends with one have such a row last."""
    records = [{"id": n, "tokens": words} for n, words in enumerate((["EU", "says"], [], ["."], []))]
    if labelled:
        records = [record | {"ner_tags": ["O"] * len(record["tokens"])} for record in records]
    rows = read("ner", parquet(records))
    assert [(row.id, row.texts) for row in rows] == [("0", ("EU", "says")), ("1", (".",))]
    with pytest.raises(DataError, match="expected sentences, got none that can be used"):
        read("ner", parquet(records[1:2]))


def test_a_row_without_words_does_not_divide_its_document(read):
    records = [{"tokens": words, "ner_tags": ["O"] * len(words), "document_id": 7} for words in (["EU"], [], ["."])]
    rows = read("ner", parquet(records))
    task = registry.get("ner")
    task.document_context = True
    assert task._units(rows) == [[0, 1]]


@pytest.mark.parametrize("labelled", [True, False])
def test_ner_words_with_blanks(read, tmp_path, labelled):
    tags = ({"ner_tags": ["O", "O", "B-LOC", "O"]}, {"ner_tags": ["O"]}) if labelled else ({}, {})
    words = (["in", "the", " New York", "."], ["a"])
    rows = read("ner", parquet([{"tokens": some, **more} for some, more in zip(words, tags, strict=True)]))
    assert [row.texts for row in rows] == [("in", "the", "New York", "."), ("a",)]
    path = tmp_path / "tagged.txt"
    predictions = [("O", "O", "B-ORG", "O"), ("O",)]
    registry.get("ner").write_predictions(rows, predictions, path)
    assert "New York\t" in path.read_text()
    assert registry.get("ner").read_predictions(rows, path) == predictions


@pytest.mark.parametrize("labelled", [True, False])
def test_ner_a_few_words_with_blanks_among_sentences_without(read, tmp_path, labelled):
    """What parts the columns is decided for a whole file, by whoever reads it too."""
    words = [["New York", "San Jose"], ["a"], ["El Paso"], ["b", "c"]]
    records = [{"tokens": some, **({"ner_tags": ["O"] * len(some)} if labelled else {})} for some in words]
    rows, path = read("ner", parquet(records)), tmp_path / "tagged.txt"
    predictions = [("B-LOC", "B-LOC"), ("O",), ("B-LOC",), ("O", "B-PER")]
    for given in (rows, [Row(row.id, row.texts, row.label) for row in rows]):
        registry.get("ner").write_predictions(given, predictions, path)
        assert all("\t" in line for line in path.read_text().splitlines() if line)
        assert registry.get("ner").read_predictions(rows, path) == predictions
    assert registry.get("ner").read_predictions(rows[:1], _written(path, "New York\tB-LOC\nSan Jose\tO\n")) == [
        ("B-LOC", "O")
    ]


def _written(path, text):
    path.write_text(text)
    return path


@pytest.mark.parametrize("word", ["\xa0", "\u2009", "\u3000", "\x85", "\x0c"])
def test_ner_a_word_of_a_blank_that_parts_no_columns(read, tmp_path, word):
    """As in files of columns; tokenizers leave nothing of it, and it needs its tag like any other."""
    rows = read("ner", parquet([{"tokens": ["EU", word, "says"], "ner_tags": ["B-ORG", "I-ORG", "O"]}]))
    assert rows[0].texts == ("EU", word, "says")
    path, predictions = tmp_path / "tagged.txt", [("B-ORG", "O", "O")]
    registry.get("ner").write_predictions(rows, predictions, path)
    assert registry.get("ner").read_predictions(rows, path) == predictions


@pytest.mark.parametrize("word", ["-DOCSTART-", "-DOCSTART- -X-"])
def test_ner_a_word_that_opens_documents_elsewhere(read, tmp_path, word):
    """As CoNLL-2003 is on hubs, with a sentence of that word before each document."""
    rows = read("ner", parquet([{"tokens": some, "ner_tags": ["O"] * len(some)} for some in ([word], ["EU", "says"])]))
    path, predictions = tmp_path / "tagged.txt", [("O",), ("B-ORG", "O")]
    registry.get("ner").write_predictions(rows, predictions, path)
    assert registry.get("ner").read_predictions(rows, path) == predictions


def test_ner_without_tags_and_of_documents(read):
    rows = read("ner", parquet([{"tokens": [w], "document_id": d} for w, d in zip("abc", (7, 7, 3), strict=True)]))
    documents = zip(range(3), "abc", (0, 0, 1), strict=True)
    assert rows == [Sentence(str(i), (word,), None, (word,), source=of) for i, word, of in documents]


@pytest.mark.parametrize(
    ("task", "records", "names", "reason"),
    [
        ("ner", [{"tokens": ["a"], "ner_tags": [1]}], None, "row 1: expected tags O, .* got 1"),
        ("ner", [{"tokens": ["a"], "ner_tags": [5]}], {"ner_tags": TAGS}, r"row 1: .* got 5 \(the file names O, B-PER"),
        ("ner", [{"tokens": ["a"], "ner_tags": ["X"]}], None, "row 1: expected tags O, .* got 'X'"),
        ("ner", [{"tokens": ["a", "b"], "ner_tags": [None, "O"]}], None, "row 1: expected tags O, .* got None"),
        ("ner", [{"tokens": ["a", "b"], "ner_tags": ["O"]}], None, "row 1: expected a tag for each of 2 words"),
        ("ner", [{"tokens": ["a\tb"], "ner_tags": ["O"]}], None, "row 1: expected words without tabs and line ends"),
        ("ner", [{"tokens": [" "], "ner_tags": ["O"]}], None, "row 1: expected words with other characters"),
        ("ner", [{"tokens": [], "ner_tags": ["O"]}], None, "row 1: expected a list of words in the column tokens"),
        ("ner", [{"text": "a b"}], None, "row 1: expected a list of words in the column tokens or words"),
        ("rte", [{"sentence1": "A", "label": 0}], None, "row 1: expected the columns sentence1, sentence2"),
        ("rte", [{"sentence1": "A", "sentence2": "B", "label": 7}], None, "row 1: expected the label to be one of"),
        ("swag", [{"sent1": "A"}], None, "row 1: expected all columns"),
        ("sst2", [{"sentence": 3, "label": 1}], None, "row 1: expected texts in sentence"),
        # MNLI's and SST-5's second class is not the second of RTE and SST-2.
        (
            "rte",
            [PAIR | {"label": n} for n in range(3)],
            NLI,
            "row 2: .* one of entailment, not_entailment, got 'neutral'",
        ),
        ("sst2", [{"text": "A", "label": 1}], FIVE, "row 1: expected the label to be one of 0, 1, got 'slightly bad'"),
    ],
)
def test_what_cannot_be_used_is_named(task, records, names, reason, read):
    with pytest.raises(DataError, match=f"parquet, {reason}") as refused:
        read(task, parquet(records, classes=names))
    assert "\n" not in str(refused.value)


def test_bad_rows_are_skipped_beyond_one_batch_of_rows(read):
    records = [{"sentence": f"S{n}", "label": n % 2, "idx": n} for n in range(2 * BATCH + 5)]
    records[3]["label"], records[BATCH + 1]["sentence"] = 9, None
    rows = read("sst2", parquet(records), skip=True)
    assert [row.id for row in rows] == [str(n) for n in range(len(records)) if n not in (3, BATCH + 1)]
    assert [reason.split(": ")[0].rsplit(", ")[-1] for reason in read.reasons] == ["row 4", f"row {BATCH + 2}"]


def test_bytes_that_are_no_text_cost_their_row_alone(read):
    raw = pa.array([b"fine", b"caf\xe9"]).view(pa.string())
    columns = pa.Table.from_arrays([raw, pa.array([1, 0])], ["sentence", "label"])
    content = parquet([], table=columns)
    with pytest.raises(DataError, match="row 2: expected UTF-8, got 0xe9 at byte 4 of a text"):
        read("sst2", content)
    assert read("sst2", content, skip=True) == [Row("0", ("fine",), "1")]


def test_class_names_are_looked_at_although_the_first_row_is_bad(read):
    """Its 1 is an entailment, and was read as GLUE's 1."""
    premises = pa.array([b"caf\xe9", b"A"]).view(pa.string())
    columns = pa.Table.from_arrays(
        [premises, pa.array(["B", "B"]), pa.array([0, 1])], ["premise", "hypothesis", "label"]
    )
    content = parquet([], table=columns, classes={"label": ["unclear", "entailment"]})
    with pytest.raises(DataError, match="got unclear, entailment, in which entailment has another place"):
        read("rte", content, skip=True)


@pytest.mark.parametrize("content", [b"", b"sentence\tlabel\nA\t1\n", parquet([{"sentence": "A", "label": 1}])[:-20]])
def test_what_is_no_parquet_is_refused(content, read):
    with pytest.raises(DataError, match="expected a Parquet file, got one that pyarrow cannot read") as refused:
        read("sst2", content)
    assert "\n" not in str(refused.value)


def test_a_damaged_name_of_a_column(read):
    content = parquet([{"sentence": "A", "label": 0}]).replace(b"sentence", b"sent\xffnce")
    with pytest.raises(DataError, match="parquet: expected a Parquet file, got one that pyarrow cannot read"):
        read("sst2", content)


def test_metadata_of_too_many_levels_name_no_classes(read):
    """They are JSON that other software may have written."""
    table = pa.Table.from_pylist([{"sentence": "A", "label": 1}])
    content = parquet([], table=table.replace_schema_metadata({"huggingface": '{"info":' * 10_000}))
    assert [row.label for row in read("sst2", content)] == ["1"]


def test_no_rows(read):
    content = parquet([], table=pa.table({"sentence": pa.array([], pa.string()), "label": pa.array([], pa.int64())}))
    with pytest.raises(DataError, match="expected rows, got none"):
        read("sst2", content)


def test_without_pyarrow_one_sentence_names_the_command(read, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"Parquet is read by pyarrow \(pip install 'fastbert\[tasks\]'\)"):
        read("sst2", parquet([{"sentence": "A", "label": 1}]))


def test_from_training_to_submission(tmp_path, capsys):
    """The three commands, as on the hub's `stanfordnlp/sst2`."""
    model, out = tiny_bert.save(tmp_path / "pretrained", "BertModel"), tmp_path / "submissions"
    out.mkdir()
    names = {"label": ["negative", "positive"]}
    rows = [{"idx": 7 + n, "sentence": text, "label": n % 2} for n, text in enumerate(["a dull film", "a fine book"])]
    train, test, run = tmp_path / "train.parquet", tmp_path / "test.parquet", tmp_path / "run"
    train.write_bytes(parquet(rows, classes=names))
    test.write_bytes(parquet([row | {"label": -1} for row in rows], classes=names))
    files = ["--model", str(model), "--train", str(train), "--dev", str(train), "--out", str(run)]
    assert main(["finetune", "sst2", *files, "--epochs", "1", "--max-seqlen", "16"]) == 0
    capsys.readouterr()
    assert main(["evaluate", "sst2", "--model", str(run), "--data", str(train)]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 2
    assert main(["predict", "sst2", "--model", str(run), "--data", str(test), "--out", str(out)]) == 0
    assert [line.split("\t")[0] for line in (out / "SST-2.tsv").read_text().splitlines()] == ["index", "7", "8"]
    capsys.readouterr()
    assert main(["evaluate", "sst2", "--model", str(run), "--data", str(test)]) == 2
    assert "test.parquet: expected labels in the column label, got none in all rows" in capsys.readouterr().err
