"""`finetune --train` of several files: large sets are published in parts."""

import json
import logging

import pytest
import tiny_bert
import yaml

from fastbert.cli._tasks import read_training
from fastbert.cli.main import main
from fastbert.errors import DataError
from fastbert.tasks import registry
from fastbert.tasks.batching import hold_out

OPTIONS = ["--epochs=1", "--batch-size=8", "--max-seqlen=16"]


def parts(directory, rows, count):
    """The rows as so many files of a hub, called as it calls them."""
    files = []
    for number in range(count):
        files.append(directory / f"train-{number:05d}-of-{count:05d}.jsonl")
        files[-1].write_text("".join(json.dumps(row) + "\n" for row in rows[number::count]))
    return files


def finetune(capsys, *words):
    assert main(["finetune", *map(str, words)]) == 0, capsys.readouterr().err


def test_all_of_the_files_are_trained_on(tmp_path, capsys):
    model = tiny_bert.save(tmp_path / "model", max_position_embeddings=32)
    rows = [{"text": row.texts[0], "label": row.label} for row in tiny_bert.rows_of(64, 1)]
    train, dev = parts(tmp_path, rows, 2), tmp_path / "dev.jsonl"
    dev.write_text("".join(json.dumps(row) + "\n" for row in rows[:8]))
    whole = tmp_path / "whole.jsonl"
    whole.write_text("".join(path.read_text() for path in train))
    common = ["text-classification", "--model", model, "--dev", dev, *OPTIONS]
    finetune(capsys, *common, "--train", *train, "--out", tmp_path / "RUN")
    finetune(capsys, *common, "--train", whole, "--out", tmp_path / "ONE")
    weights = [(tmp_path / run / "model" / "model.safetensors").read_bytes() for run in ("RUN", "ONE")]
    assert weights[0] == weights[1]
    assert yaml.safe_load((tmp_path / "RUN" / "config.yaml").read_text())["train"] == list(map(str, train))
    assert yaml.safe_load((tmp_path / "ONE" / "config.yaml").read_text())["train"] == str(whole)


def test_a_part_that_is_not_given_is_told(tmp_path, caplog):
    files = parts(tmp_path, [{"text": f"a {i}", "label": i % 2} for i in range(12)], 3)
    with caplog.at_level(logging.WARNING, "fastbert"):
        assert len(read_training(registry.get("text-classification"), files[:2], False, None)) == 8
    assert caplog.messages == [
        f"{tmp_path}/train-*-of-00003.jsonl: got 2 of the 3 parts that its name speaks of; --train takes several files"
    ]
    caplog.clear()
    assert len(read_training(registry.get("text-classification"), files, False, None)) == 12
    assert not caplog.messages


def test_labels_of_all_files_are_seen_together(tmp_path, caplog):
    """What joins the classes of another file is no class; nor is the one that another file spells otherwise."""
    first, second = tmp_path / "a.tsv", tmp_path / "b.tsv"
    first.write_text("text\tlabel\n" + "the film\t2\na film\t5\n" * 4)
    second.write_text("text\tlabel\n" + "it\t2,5\n" * 4 + "good\t2.0\n" * 4)
    files = [first, second]
    with pytest.raises(DataError, match=r"b\.tsv, the row of index 0: expected one class a text, got several, '2,5'"):
        read_training(registry.get("text-classification"), files, False, None)
    caplog.clear()
    with caplog.at_level(logging.WARNING, "fastbert"):
        rows = read_training(registry.get("text-classification"), files, True, None)
    assert [row.label for row in rows] == ["2", "5"] * 4 + ["2.0"] * 4
    same = "the labels 2 and 2.0 are the same number, but are taken for two classes"
    assert caplog.messages == [f"{first}, {second}: {same}"]
    caplog.clear()
    second.write_text("text\tlabel\n" + "it\t2 5\n" * 4)
    with caplog.at_level(logging.WARNING, "fastbert"):
        assert len(read_training(registry.get("text-multilabel"), files, False, None)) == 12
    [said] = caplog.messages
    assert said.startswith(f"{first}, {second}: the label '2 5' is several others with blanks between them")


def test_what_is_counted_in_each_file_is_another_source_in_each(tmp_path):
    """Articles of SQuAD and documents of CoNLL are numbered, titles and videos have names of their own."""
    files = []
    for part in "AB":
        article = {
            "paragraphs": [
                {
                    "context": f"{part} {number} is here.",
                    "qas": [{"id": f"{part}{number}", "question": "?", "answers": [{"text": part, "answer_start": 0}]}],
                }
                for number in range(3)
            ]
        }
        files.append(tmp_path / f"{part}.json")
        files[-1].write_text(json.dumps({"data": [article]}))
    task = registry.get("squad1")
    kept, held = hold_out(read_training(task, files, False, None), 0.5, task.sources)
    assert [{row.id[0] for row in side} for side in (kept, held)] in ([{"A"}, {"B"}], [{"B"}, {"A"}])
    tagged = [tmp_path / f"{part}.txt" for part in "AB"]
    for path in tagged:
        path.write_text("-DOCSTART- O\n\n" + "x B-PER\n\n" * 3)
    task = registry.get("ner")
    task.document_context = True
    rows = read_training(task, tagged, False, None)
    assert task._units(rows) == [[0, 1, 2], [3, 4, 5]]
    hub = [tmp_path / f"{part}.jsonl" for part in "AB"]
    for path in hub:
        question = {"title": "T", "question": "?", "context": "a b", "answers": {"text": ["a"], "answer_start": [0]}}
        path.write_text(json.dumps({"id": path.name, **question}))
    assert [row.source for row in read_training(registry.get("squad1"), hub, False, None)] == ["T", "T"]
