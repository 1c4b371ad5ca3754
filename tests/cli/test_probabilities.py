"""`fastbert predict --probabilities`: the table beside the predictions."""

from __future__ import annotations

import json

import tiny_bert
import torch

from fastbert.cli.main import main
from fastbert.data import chunks

LABELS = {0: "neg", 1: "neutral", 2: "pos"}


def predict(tmp_path, *more, task="text-classification", labels=LABELS) -> int:
    names = {"id2label": labels, "label2id": {name: number for number, name in labels.items()}}
    model = tiny_bert.save(tmp_path / "model", "BertForSequenceClassification", **names)
    data = tmp_path / "data.tsv"
    if not data.exists():
        rows = [f"r{row.id}\t{row.texts[0]}" for row in tiny_bert.rows_of(7, 1)]
        data.write_text("\n".join(["id\ttext", *rows]) + "\n")
    return main(["predict", task, "--model", str(model), "--data", str(data), *map(str, more)])


def test_the_table_is_transformers_softmax(tmp_path, monkeypatch, capsys):
    """Over several windows of rows."""
    from transformers import BertForSequenceClassification, BertTokenizerFast

    monkeypatch.setattr(chunks, "WINDOW", 3)
    out, table = tmp_path / "out.tsv", tmp_path / "table.tsv"
    assert predict(tmp_path, "--out", out, "--probabilities", table) == 0
    assert capsys.readouterr().out.endswith(f"{out}\n{table}\n")
    header, *lines = [line.split("\t") for line in table.read_text().splitlines()]
    assert header == ["index", "neg", "neutral", "pos"]
    model = BertForSequenceClassification.from_pretrained(tmp_path / "model").eval()
    tokenizer = BertTokenizerFast(str(tmp_path / "model" / "vocab.txt"))
    predictions = dict(line.split("\t") for line in out.read_text().splitlines()[1:])
    assert [line[0] for line in lines] == [f"r{number}" for number in range(7)] == list(predictions)
    for row, line in zip(tiny_bert.rows_of(7, 1), lines, strict=True):
        with torch.no_grad():
            expected = model(**tokenizer(row.texts[0], return_tensors="pt")).logits[0].softmax(-1)
        torch.testing.assert_close(torch.tensor([float(x) for x in line[1:]]), expected, rtol=0, atol=2e-6)
        assert predictions[line[0]] == LABELS[int(expected.argmax())]


TAGS = {0: "O", 1: "B-_", 2: "I-_"}
"""Of a model that was trained on tags without types."""


def predict_tags(tmp_path, sentences, *more):
    """The lines of predicted tags and those of the table, whose header is checked."""
    names = {"id2label": TAGS, "label2id": {name: number for number, name in TAGS.items()}}
    vocab = [*tiny_bert.VOCAB, "##s"]
    model = tiny_bert.save(tmp_path / "model", "BertForTokenClassification", vocab=vocab, **names)
    data, out, table = tmp_path / "words.txt", tmp_path / "tags.txt", tmp_path / "table.tsv"
    data.write_text("\n\n".join("\n".join(words) for words in sentences) + "\n")
    given = ["--model", model, "--data", data, "--out", out, "--probabilities", table, *more]
    assert main(["predict", "ner", *map(str, given)]) == 0
    header, *lines = [line.split("\t") for line in table.read_text().splitlines()]
    assert header == ["index", "word", "O", "B", "I"]
    return [line.split(" ") for line in out.read_text().splitlines() if line], lines


def test_words_have_those_of_their_first_piece(tmp_path):
    """transformers' softmax, sentence by sentence."""
    from transformers import BertForTokenClassification, BertTokenizerFast

    sentences = [["the", "films", "is", "goods"], ["dull"], ["a", "books", "."]]
    tags, lines = predict_tags(tmp_path, sentences)
    words = [(str(number), word) for number, sentence in enumerate(sentences) for word in sentence]
    assert [tuple(line[:2]) for line in lines] == words
    model = BertForTokenClassification.from_pretrained(tmp_path / "model").eval()
    tokenizer = BertTokenizerFast(str(tmp_path / "model" / "vocab.txt"))
    expected = []
    for sentence in sentences:
        pieces = tokenizer([sentence], is_split_into_words=True, return_tensors="pt")
        first = [pieces.word_ids(0).index(number) for number in range(len(sentence))]
        with torch.no_grad():
            expected.append(model(**pieces).logits[0, first].softmax(-1))
    expected = torch.cat(expected)
    found = torch.tensor([list(map(float, line[2:])) for line in lines])
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-6)
    assert [tag for _, tag in tags] == [TAGS[number].removesuffix("-_") for number in expected.argmax(-1).tolist()]


def test_words_of_a_sentence_in_windows(tmp_path):
    """Each has the probabilities of the window that its tag is from, and stands in the table once."""
    words = ["the", "film", "is", "very", "good", "and", "a", "book", "dull"] * 6
    tags, lines = predict_tags(tmp_path, [words, ["film"]], "--max-seqlen", 12)
    assert [line[1] for line in lines] == [*words, "film"]
    assert [line[0] for line in lines] == ["0"] * len(words) + ["1"]
    best = [max(range(3), key=lambda tag, line=line: float(line[2 + tag])) for line in lines]
    assert [tag for _, tag in tags] == [TAGS[number].removesuffix("-_") for number in best]


def test_endings_have_a_line_each(tmp_path):
    """transformers' softmax over the endings of a row, whose number differs from row to row."""
    from transformers import BertForMultipleChoice, BertTokenizerFast

    model = tiny_bert.save(tmp_path / "model", "BertForMultipleChoice")
    questions = [["good", "is dull .", "a book"], ["great", "poor ."]]
    rows = [{"question": "the film is", "choices": choices, "answer": 0} for choices in questions]
    data, out, table = tmp_path / "data.jsonl", tmp_path / "out.csv", tmp_path / "table.tsv"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = ["--model", model, "--data", data, "--out", out, "--probabilities", table]
    assert main(["predict", "swag", *map(str, given)]) == 0
    header, *lines = [line.split("\t") for line in table.read_text().splitlines()]
    assert header == ["index", "ending", "probability"]
    assert [line[:2] for line in lines] == [["0", "0"], ["0", "1"], ["0", "2"], ["1", "0"], ["1", "1"]]
    model = BertForMultipleChoice.from_pretrained(model).eval()
    tokenizer = BertTokenizerFast(str(tmp_path / "model" / "vocab.txt"))
    expected = []
    for choices in questions:
        pieces = tokenizer(["the film is"] * len(choices), choices, padding=True, return_tensors="pt")
        with torch.no_grad():
            expected.append(model(**{name: value[None] for name, value in pieces.items()}).logits[0].softmax(-1))
    found = torch.tensor([float(line[2]) for line in lines])
    torch.testing.assert_close(found, torch.cat(expected), rtol=0, atol=2e-6)
    best = [str(int(shares.argmax())) for shares in expected]
    assert [line.split(",")[1] for line in out.read_text().splitlines()[1:]] == best


def test_one_file_by_two_names_is_no_place_for_both(tmp_path, capsys):
    out = tmp_path / "out.tsv"
    assert predict(tmp_path, "--out", out, "--probabilities", tmp_path / "model" / ".." / "out.tsv") == 2
    assert "--probabilities: expected another file than the predictions'" in capsys.readouterr().err
    assert not out.exists()


def test_predictions_on_standard_output_are_not_mixed_with_its_path(tmp_path, capsys):
    assert predict(tmp_path, "--probabilities", tmp_path / "table.tsv") == 0
    printed = capsys.readouterr().out
    assert printed.count("\t") == 8
    assert "table.tsv" not in printed
    assert len((tmp_path / "table.tsv").read_text().splitlines()) == 8


def test_large_logits_are_no_overflow():
    from fastbert.tasks import registry
    from fastbert.tasks.base import Row

    task = registry.get("sst2")
    [(index, *shares)] = task.probabilities([Row("0", ("x",), None)], [], [torch.tensor([1000.0, -1000.0]).numpy()])
    assert (index, shares) == ("0", [1.0, 0.0])


def test_a_row_that_ends_the_command_leaves_no_table(tmp_path, capsys):
    (tmp_path / "data.tsv").write_text("id\ttext\n1\ta film\n1\ta film\n")
    table = tmp_path / "table.tsv"
    assert predict(tmp_path, "--out", tmp_path / "out.tsv", "--probabilities", table) == 2
    assert "line 3" in capsys.readouterr().err
    assert not table.exists()


def test_what_has_no_classes_or_no_file_of_its_own_is_refused(tmp_path, capsys):
    table = tmp_path / "table.tsv"
    assert predict(tmp_path, "--out", table, "--probabilities", table) == 2
    assert f"expected another file than the predictions', got {table} for both" in capsys.readouterr().err
    assert predict(tmp_path, "--probabilities", table, task="stsb") == 2
    assert "--probabilities belongs to tasks of classes, ner and swag, got the task stsb" in capsys.readouterr().err
    assert predict(tmp_path, "--probabilities", tmp_path / "data.tsv") == 2
    assert "expected an output file that is not the input" in capsys.readouterr().err
    assert predict(tmp_path, "--probabilities", "-") == 2
    said = "--probabilities: expected a name to write under, got -: only the predictions of `fastbert predict` go to "
    assert said in capsys.readouterr().err
    assert not table.exists()
