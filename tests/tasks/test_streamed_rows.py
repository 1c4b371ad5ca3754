"""Rows and predictions as a stream: memory does not grow with a file, and windows change no prediction."""

import io
import itertools
import json
import sys
import tracemalloc

import pytest
import tiny_bert

from fastbert.cli.main import main
from fastbert.data import chunks
from fastbert.tasks import registry, squad
from fastbert.tasks.choice_forms import CODAH, REGULAR
from fastbert.tasks.sst2 import SST2

TEXT = "a film that is as long as any other, in the end " * 4


def csv_of(header, fields):
    return lambda index: ",".join(header) if index < 0 else ",".join(f'"{name} {index} {TEXT}"' for name in fields)


FORMS = {
    "sst2.tsv": lambda i: "sentence\tlabel" if i < 0 else f"{i} {TEXT}\t1",
    "sst2.csv": csv_of(["sentence"], ["text"]),
    "sst2.jsonl": lambda i: json.dumps({"sentence": f"{i} {TEXT}"}),
    "mnli.tsv": lambda i: "premise\thypothesis" if i < 0 else f"a\t{i} {TEXT}",
    "text-classification.jsonl": lambda i: json.dumps({"text": f"{i} {TEXT}"}),
    "swag.csv": csv_of(REGULAR.columns, REGULAR.columns),
    "swag.tsv": lambda i: "\t".join(["w", *(f"{name} {i} {TEXT}" for name in CODAH[1:-1])]),
}


@pytest.mark.parametrize("name", FORMS)
def test_rows_are_read_in_flat_memory(name, tmp_path):
    path, line_of = tmp_path / name, FORMS[name]
    first = -1 if not name.endswith(".jsonl") and name != "swag.tsv" else 0
    peaks = []
    for count in (50, 2000):
        path.write_text("".join(f"{line_of(index)}\n" for index in range(first, count)))
        task = registry.get(name.split(".")[0])
        task.predicting = True
        tracemalloc.start()
        try:
            assert sum(1 for _ in task.rows(path)) == count
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert peaks[1] < peaks[0] + 300_000, peaks  # their characters alone are half a million


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    names = {"id2label": {0: "0", 1: "1"}, "label2id": {"0": 0, "1": 1}}
    return tiny_bert.save(
        tmp_path_factory.mktemp("model"), "BertForSequenceClassification", max_position_embeddings=128, **names
    )


@pytest.fixture
def windows(monkeypatch):
    """The rows of every window that is encoded."""
    monkeypatch.setattr(chunks, "WINDOW", 3)
    sizes, encode = [], SST2.encode
    monkeypatch.setattr(SST2, "encode", lambda self, rows, *a: sizes.append(len(rows)) or encode(self, rows, *a))
    return sizes


def run(model, data, out):
    return main(["predict", "sst2", "--model", str(model), "--data", str(data), "--out", str(out), "--skip-bad-rows"])


@pytest.mark.parametrize("name", ["f.tsv", "f.csv", "f.jsonl", "-"])
def test_windows_change_no_prediction_and_no_number_of_a_row(name, model, tmp_path, windows, monkeypatch, capsys):
    """Rows are numbered as in the file, those that are left out among them."""
    texts = [row.texts[0].encode() for row in tiny_bert.rows_of(10, 0)]
    texts[4] = b"caf\xe9"
    if name.endswith(".jsonl"):
        content = b"".join(b'{"sentence": "%s"}\n' % text for text in texts)
    elif name == "f.csv":
        content = b'"sentence","genre"\n' + b"".join(b'"%s","x"\n' % text for text in texts)
    else:
        content = b"sentence\tgenre\n" + b"".join(b"%s\tx\n" % text for text in texts)
    data, found = name, []
    if name != "-":
        data = tmp_path / name
        data.write_bytes(content)
    for window in (1024, 3):
        monkeypatch.setattr(chunks, "WINDOW", window)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
        assert run(model, data, tmp_path / "out.tsv") == 0
        found.append((tmp_path / "out.tsv").read_text())
        assert capsys.readouterr().err.count("1 bad row skipped, 9 rows kept") == 1
    assert windows == [9, 3, 3, 3]
    assert found[0] == found[1]
    numbers = [line.split("\t")[0] for line in found[0].splitlines()[1:]]
    assert numbers == ["0", "1", "2", "3", "5", "6", "7", "8", "9"]


def test_windows_change_no_answer_of_squad(tmp_path, monkeypatch, capsys):
    """Its file is read whole; what its questions become, and what the model says of them, is many times as large."""
    model = tiny_bert.save(tmp_path / "model", "BertForQuestionAnswering", max_position_embeddings=64)
    texts = [row.texts[0] for row in tiny_bert.rows_of(7, 0)]
    asked = [
        {"id": f"q{i}", "question": text, "context": f"{text} \u00e9 " * (1 + i % 3)} for i, text in enumerate(texts)
    ]
    data = tmp_path / "test.jsonl"
    data.write_text("".join(json.dumps(question) + "\n" for question in asked))
    sizes, encode = [], squad.encode_windows
    monkeypatch.setattr(squad, "encode_windows", lambda rows, *a: sizes.append(len(rows)) or encode(rows, *a))
    found = []
    for window in (1024, 3):
        monkeypatch.setattr(chunks, "WINDOW", window)
        out = tmp_path / str(window)
        command = ["predict", "squad2", "--model", model, "--data", data, "--max-seqlen", 16, "--out", f"{out}/"]
        assert main([str(word) for word in command]) == 0, capsys.readouterr().err
        found.append({path.name: path.read_text(encoding="utf-8") for path in out.iterdir()})
    assert sizes == [7, 3, 3, 1]
    for files in found:
        assert set(files) == {"predictions.json", "nbest_predictions.json", "null_odds.json"}
        for text in files.values():
            assert text == json.dumps(json.loads(text), ensure_ascii=False, indent=2) + "\n"
            assert list(json.loads(text)) == [question["id"] for question in asked]
    # Which questions are computed together may show in the last bits of a score.
    names = ("predictions.json", "nbest_predictions.json", "null_odds.json")
    answers, best, odds = ([json.loads(files[name]) for files in found] for name in names)
    assert answers[0] == answers[1]
    assert odds[0] == pytest.approx(odds[1], rel=1e-4, abs=1e-5)
    for name, entries in best[0].items():
        assert [entry.pop("text") for entry in entries] == [entry.pop("text") for entry in best[1][name]]
        assert entries == [pytest.approx(entry, rel=1e-4, abs=1e-5) for entry in best[1][name]]


def test_a_bad_row_far_down_a_file_is_told_before_anything_is_computed(model, tmp_path, windows, capsys):
    data = tmp_path / "f.tsv"
    data.write_text("sentence\n" + "a film\n" * 9 + "a\tb\n")
    command = ["predict", "sst2", "--model", str(model), "--data", str(data), "--out", str(tmp_path / "out.tsv")]
    assert main(command) == 2
    assert "line 11: expected 1 column" in capsys.readouterr().err.replace("tab-separated ", "")
    assert windows == []
    assert not (tmp_path / "out.tsv").exists()


def test_rows_with_an_id_and_without_are_not_mixed(tmp_path):
    """A number could be another row's id."""
    named, without = '{"sentence": "a", "idx": 1}', '{"sentence": "b"}'
    for number, lines in enumerate([(named, without), (without, named)]):
        path = tmp_path / f"{number}.jsonl"
        path.write_text("\n".join(lines))
        task = registry.get("sst2")
        assert len(task.read(path)) == 2
        task.predicting = True
        with pytest.raises(Exception, match=r"line 2: expected (an id as in|no id, as in) the rows before"):
            task.read(path)


def test_standard_output_has_what_is_computed_before_the_end_is_read(model, windows, monkeypatch):
    """What comes through a pipe is not waited for to its end."""
    seen, task = [], registry.get("sst2")
    monkeypatch.setattr(
        SST2, "write_predictions", lambda self, rows, found, path: seen.extend(itertools.islice(rows, 2)) or []
    )
    lines = itertools.chain([b"a film\n"] * 7, iter(lambda: pytest.fail("read to the end"), None))
    monkeypatch.setattr("fastbert.tasks.files.binary_lines", lambda file: lines)
    assert main(["predict", task.name, "--model", str(model), "--data", "-"]) == 0
    assert len(seen) == 2
