"""Bad corpora, vocabularies and shards at the command line: status 2, one sentence, nothing left behind."""

import pytest
import tiny_bert

from fastbert.cli.main import main

TEXT = (
    "The film is good. It was not bad.\nA great book, and very fine!\n\nThe capital of France is Paris.\nIt is dull.\n"
)


def run(*args) -> int:
    return main([str(arg) for arg in args])


def fails(capsys, *args) -> str:
    """Runs a command that must exit with status 2 and one line on stderr; returns it."""
    capsys.readouterr()
    assert run(*args) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("fastbert: ")]
    assert len(lines) == 1
    assert "internal error" not in lines[0]
    return lines[0]


@pytest.fixture
def vocab(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(tiny_bert.VOCAB) + "\n")
    return path


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text((TEXT + "\n") * 20)
    return path


def test_empty_corpus(corpus, vocab, tmp_path, capsys):
    corpus.write_text("")
    out = tmp_path / "data"
    assert str(corpus) in fails(capsys, "prepare", corpus, "--vocab", vocab, "--out", out)
    assert not out.exists()
    assert str(corpus) in fails(capsys, "vocab", corpus, "--size", 100, "--out", tmp_path / "new.txt")
    assert not (tmp_path / "new.txt").exists()


def test_missing_corpus(vocab, tmp_path, capsys):
    out = tmp_path / "data"
    assert "none.txt" in fails(capsys, "prepare", tmp_path / "none.txt", "--vocab", vocab, "--out", out)
    assert not out.exists()


def test_binary_corpus(corpus, vocab, tmp_path, capsys):
    corpus.write_bytes(bytes(range(256)) * 40)
    out = tmp_path / "data"
    assert str(corpus) in fails(capsys, "prepare", corpus, "--vocab", vocab, "--out", out)
    assert not out.exists()


def test_invalid_utf8_is_named_by_line_and_can_be_replaced(corpus, vocab, tmp_path, capsys):
    lines = corpus.read_bytes().split(b"\n")
    lines[6] = b"caf\xe9 is good."
    corpus.write_bytes(b"\n".join(lines))
    out = tmp_path / "data"
    error = fails(capsys, "prepare", corpus, "--vocab", vocab, "--out", out)
    assert f"{corpus}:7:" in error
    assert not out.exists()
    assert run("prepare", corpus, "--vocab", vocab, "--out", out, "--errors", "replace") == 0
    assert (out / "manifest.json").is_file()


def test_vocabulary_without_mask(corpus, vocab, tmp_path, capsys):
    vocab.write_text("\n".join(word for word in tiny_bert.VOCAB if word != "[MASK]") + "\n")
    out = tmp_path / "data"
    assert "[MASK]" in fails(capsys, "prepare", corpus, "--vocab", vocab, "--out", out)
    assert not out.exists()


def test_truncated_shard(corpus, vocab, tmp_path, capsys):
    data = tmp_path / "data"
    assert run("prepare", corpus, "--vocab", vocab, "--out", data) == 0
    shard = data / "train" / "shard-00000.bin"
    shard.write_bytes(shard.read_bytes()[:-10])
    error = fails(capsys, "pretrain", "--data", data, "--model", "2x128", "--steps", 2, "--out", tmp_path / "run")
    assert "shard-00000.bin" in error
    assert not (tmp_path / "run" / "model").exists()
