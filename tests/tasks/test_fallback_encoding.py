"""Files that are not UTF-8: read in the encoding that is asked for, and in none that is not."""

import json

import pytest
import tiny_bert

from fastbert.cli._tasks import read_rows
from fastbert.cli.main import main
from fastbert.errors import DataError, InputError
from fastbert.tasks import registry
from fastbert.tasks.bad_rows import BadRows

# TREC's training questions have one line in Latin-1; the first lines here are UTF-8, of more bytes than characters.
TREC = "DESC:manner How did caf\u00e9s start ?\n".encode() + "HUM:ind Who is Ni\u00f1o ?\n".encode("latin-1")
ESP = "Espa\u00f1a B-LOC\n. O\n\n\u00c1vila B-LOC\n".encode("latin-1")


def read(task, path, content, encoding):
    path.write_bytes(content)
    task = registry.get(task)
    task.bad_rows = BadRows(encoding=encoding)
    return task.read(path), task.bad_rows


def test_lines_that_are_not_utf_8(tmp_path):
    rows, bad = read("text-classification", tmp_path / "train_5500.label", TREC, "latin-1")
    assert [row.texts[0] for row in rows] == ["How did caf\u00e9s start ?", "Who is Ni\u00f1o ?"]
    assert (bad.decoded, bad.reasons) == (1, [])
    with pytest.raises(DataError, match="line 2: expected UTF-8, got 0xf1 at byte 18; iconv"):
        read("text-classification", tmp_path / "train_5500.label", TREC, None)


def test_sentences_of_conll_2002(tmp_path):
    rows, bad = read("ner", tmp_path / "esp.train", ESP, "latin-1")
    assert [row.texts for row in rows] == [("Espa\u00f1a", "."), ("\u00c1vila",)]
    assert bad.decoded == 2
    with pytest.raises(DataError, match=r"esp.train, line 1: expected UTF-8, got 0xf1"):
        read("ner", tmp_path / "esp.train", ESP, None)
    with pytest.raises(DataError, match="--fallback-encoding windows-1252 reads it"):
        read_rows(registry.get("ner"), tmp_path / "esp.train", False)


def test_json_that_is_one_value(tmp_path):
    """The option says how files are read; where it changed nothing it would be refused."""
    answer = {"text": "Ni\u00f1o", "answer_start": 0}
    question = {"id": "a", "question": "Qui\u00e9n?", "context": "Ni\u00f1o", "answers": [answer]}
    paragraph = {"context": question["context"], "qas": [question]}
    for name, value in {"own.json": {"data": [{"paragraphs": [paragraph]}]}, "hub.json": [question]}.items():
        content = json.dumps(value, ensure_ascii=False).encode("latin-1")
        rows, bad = read("squad1", tmp_path / name, content, "latin-1")
        assert (rows[0].texts, bad.decoded) == (("Qui\u00e9n?", "Ni\u00f1o"), 1)
        with pytest.raises(DataError, match=r"line 1: expected UTF-8, got 0x(e9|f1)"):
            read("squad1", tmp_path / name, content, None)
    lines = "".join(json.dumps(question | {"id": i}, ensure_ascii=False) + "\n" for i in range(2)).encode("latin-1")
    rows, bad = read("squad1", tmp_path / "lines.json", lines, "latin-1")
    assert (len(rows), bad.decoded) == (2, 2)
    rows, bad = read("sst2", tmp_path / "list.json", b'[{"sentence": "ni\xf1o", "label": 1}]', "latin-1")
    assert (rows[0].texts, bad.decoded) == (("ni\u00f1o",), 1)


def test_texts_of_a_directory(tmp_path):
    """20 Newsgroups has some."""
    for name, text in {"a": "na\u00efve".encode("latin-1"), "b": "\ufeffna\u00efve".encode()}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "1").write_bytes(text)
    task = registry.get("text-classification")
    task.bad_rows = BadRows(encoding="latin-1")
    assert [row.texts[0] for row in task.read(tmp_path)] == ["na\u00efve", "na\u00efve"]
    assert task.bad_rows.decoded == 1


def test_a_byte_that_the_encoding_has_not(tmp_path):
    with pytest.raises(DataError, match="line 1: expected UTF-8 or windows-1252, got 0x81 at byte 12; iconv"):
        read("text-classification", tmp_path / "a.label", b"HUM:ind Who\x81 ?\n", "windows-1252")


@pytest.mark.parametrize("name", ["gbk", "shift_jis", "utf-16", "euc-kr", "none", "rot13", "", "a\0"])
def test_encodings_that_lines_of_utf_8_may_be_in_are_refused(name):
    """GBK's bytes of the commonest Chinese character are those of a Cyrillic letter."""
    assert "\u4e00".encode("gbk").decode("utf-8") == "\u04bb"
    with pytest.raises(InputError, match="the fallback encoding must have one byte a character, as latin-1"):
        BadRows(encoding=name)


def test_commands_say_how_many(tmp_path, capsys):
    model, run = tiny_bert.save(tmp_path / "model", num_hidden_layers=1), tmp_path / "run"
    (tmp_path / "train.label").write_bytes(TREC)
    data = ["--train", str(tmp_path / "train.label"), "--dev", str(tmp_path / "train.label")]
    given = ["finetune", "text-classification", "--model", str(model), *data, "--out", str(run), "--epochs", "1"]
    assert main([*given, "--max-seqlen", "32"]) != 0
    said = capsys.readouterr().err
    assert "0xf1 at byte 18; iconv" in said
    assert "--fallback-encoding windows-1252 reads it (--skip-bad-rows leaves such rows out)" in said
    assert main([*given, "--max-seqlen", "32", "--fallback-encoding", "latin-1"]) == 0
    assert capsys.readouterr().err.count("train.label: not UTF-8 in 1 place, read as latin-1") == 2
    for command in ("evaluate", "predict"):
        used = [command, "text-classification", "--model", str(run), "--data", str(tmp_path / "train.label")]
        assert main(used) != 0
        capsys.readouterr()
        assert main([*used, "--fallback-encoding", "latin-1"]) == 0
        out, err = capsys.readouterr()
        assert err.count("train.label: not UTF-8 in 1 place, read as latin-1") == 1
        assert json.loads(out)["rows"] == 2 if command == "evaluate" else out.count("\n") == 3
    rows = read_rows(registry.get("text-classification"), tmp_path / "train.label", False, "latin-1")
    assert len(rows) == 2
