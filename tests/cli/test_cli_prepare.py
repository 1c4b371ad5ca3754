"""`fastbert vocab` and `fastbert prepare` as a user runs them: what they print, write, and say of bad input."""

from __future__ import annotations

import errno
import os
import re
import subprocess
from pathlib import Path

import pytest

from fastbert import files
from fastbert.cli.main import main
from fastbert.data.prepare import prepare
from fastbert.data.shards import ShardSet
from fastbert.data.tokenizer import load_tokenizer


@pytest.fixture(scope="module")
def corpus(shared_data, tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "books.txt"
    path.write_text((shared_data / "corpus" / "books.txt").read_text(encoding="utf-8")[:400_000], encoding="utf-8")
    return path


def test_vocab_then_prepare(corpus, tmp_path, capsys):
    vocab, out = tmp_path / "vocab.txt", tmp_path / "DATA"
    assert main(["vocab", str(corpus), "--size", "1500", "--out", str(vocab)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed == ["1,500 tokens (uncased)", str(vocab), str(tmp_path / "tokenizer_config.json")]
    assert len(vocab.read_text(encoding="utf-8").splitlines()) == 1500
    assert main(["prepare", str(corpus), "--vocab", str(vocab), "--heldout", "0.2", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    train, heldout = ShardSet.open(out, verify=True), ShardSet.open(out, "heldout", verify=True)
    assert f"train: {len(train):,} documents, {train.num_sentences:,} sentences, {train.num_tokens:,} tokens" in printed
    assert f"heldout: {len(heldout):,} documents" in printed
    assert "% [MASK]" in printed
    assert "random second segment" in printed
    assert printed.rstrip().endswith(str(out))


@pytest.mark.parametrize(("text", "count"), [("film", "1 token,"), ("film film", "2 tokens,")])
def test_a_text_that_the_vocabulary_does_not_know_is_refused(text, count, tmp_path, capsys):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nbook\n")
    (tmp_path / "corpus.txt").write_text(text)
    command = ["prepare", str(tmp_path / "corpus.txt"), "--vocab", str(tmp_path / "vocab.txt"), "--num-workers", "1"]
    assert main([*command, "--out", str(tmp_path / "DATA")]) == 2
    assert f"got {count} all [UNK]: train a vocabulary on this text" in capsys.readouterr().err
    assert not (tmp_path / "DATA").exists()


def test_what_is_written_into_the_corpus_is_not_read_as_text(tmp_path):
    text = "\n\n".join(f"The cat sat on mat {number}. It was warm." for number in range(20))
    (tmp_path / "text.txt").write_text(text)
    vocab = tmp_path / "vocab.txt"
    for _ in range(2):  # the second time it lies there already
        assert main(["vocab", str(tmp_path), "--size", "60", "--out", str(vocab)]) == 0
    words = vocab.rename(tmp_path / "words.txt")
    assert main(["prepare", str(tmp_path), "--vocab", str(words), "--out", str(tmp_path / "DATA")]) == 0
    prepare(tmp_path, words, tmp_path / "MORE")
    for name in ("DATA", "MORE"):
        shards = ShardSet.open(tmp_path / name)
        assert (len(shards), shards.num_sentences) == (20, 40)


def test_options_of_prepare(tmp_path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *["one", "two", "three", "four", "five", "six", "."]]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n")
    (tmp_path / "a.txt").write_text("\n".join(["One. Two.\nThree\nFour\nFive\nSix\n"] * 3))
    command = ["prepare", str(tmp_path / "a.txt"), "--vocab", str(tmp_path / "vocab.txt"), "--out", str(tmp_path / "D")]
    for given, sentences, shards in (([], 15, 1), (["--segment", "always", "--shard-tokens", "8"], 18, 3)):
        assert main([*command, *given, "--overwrite"]) == 0
        data = ShardSet.open(tmp_path / "D")
        assert (len(data), data.num_sentences, len(data.tokens)) == (3, sentences, shards)
    assert main(command) == 2


def test_the_recipe_for_bookcorpus_can_hold_text_out(tmp_path, capsys, caplog):
    """As many lines as in 9 MB of it."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
    cut, options = re.search(r"read_table.* \| (awk .*) \| fastbert prepare - .*(--heldout \S+)", page).groups()
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"0123456789", *(f"##{digit}" for digit in "0123456789")]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n")
    text, vocab = tmp_path / "book.txt", str(tmp_path / "vocab.txt")
    text.write_text("".join(f"{number % 97} {number // 97}\n" for number in range(150_000)))
    command = ["prepare", str(text), "--vocab", vocab, *options.split(), "--out", str(tmp_path / "DATA")]
    assert main(command) == 2
    assert "got 1 in all; give more documents (in text, put a blank line between them)" in capsys.readouterr().err
    text.write_bytes(subprocess.run(cut, shell=True, input=text.read_bytes(), capture_output=True, check=True).stdout)
    assert main(command) == 0
    train, heldout = ShardSet.open(tmp_path / "DATA"), ShardSet.open(tmp_path / "DATA", "heldout")
    assert train.num_sentences + heldout.num_sentences == 150_000
    assert len(heldout) > 1
    assert not caplog.records


def test_files_that_are_given_twice_are_read_once_and_told_once(corpus, tmp_path, caplog):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "link.txt").symlink_to(corpus)
    given = {"once": [str(corpus)], "twice": [str(corpus), str(tmp_path / "sub"), str(corpus)]}
    said = f"corpus: 2 files left out ({tmp_path / 'sub' / 'link.txt'}, {corpus}): given already, by the same path or"
    for name, paths in given.items():
        vocab, out = str(tmp_path / name / "vocab.txt"), str(tmp_path / name / "DATA")
        # Twice the text has twice the pairs.
        assert main(["vocab", *paths, "--size", "3000", "--min-frequency", "20", "--out", vocab]) == 0
        assert caplog.text.count(said) == (name == "twice")
        caplog.clear()
        assert main(["prepare", *paths, "--vocab", vocab, "--out", out]) == 0
        assert caplog.text.count(said) == (name == "twice")
    once, twice = (tmp_path / name for name in given)
    for name in ("vocab.txt", "DATA/manifest.json"):
        assert (once / name).read_bytes() == (twice / name).read_bytes()


@pytest.mark.parametrize("owner", ["config.json", "bert_config.json", "manifest.json"])
def test_the_vocabulary_of_a_model_or_of_data_is_not_replaced(corpus, tmp_path, capsys, owner):
    (tmp_path / "vocab.txt").write_text("a model's")
    command = ["vocab", str(corpus), "--size", "300", "--out"]
    assert main([*command, str(tmp_path / "vocab.txt")]) == 0
    assert f"{tmp_path / 'vocab.txt'}: replaced another vocabulary\n" in capsys.readouterr().err
    assert main([*command, str(tmp_path / "vocab.txt")]) == 0  # the same one
    assert "replaced" not in capsys.readouterr().err
    (tmp_path / owner).write_text("{}")
    kept = (tmp_path / "vocab.txt").read_bytes()
    for out in (tmp_path, tmp_path / "vocab.txt"):
        assert main([*command, str(out)]) == 2
        assert f"expected a new file, got the vocabulary that {owner} beside it" in capsys.readouterr().err
    assert (tmp_path / "vocab.txt").read_bytes() == kept


@pytest.mark.parametrize("owner", ["config.json", "manifest.json"])
@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "vocab.json", "spiece.model"])
def test_a_tokenizer_without_a_vocab_txt_is_not_replaced(corpus, tmp_path, capsys, owner, name):
    """As of GPT-2 and RoBERTa, and of data of byte pairs; a new vocab.txt would also be read in place of vocab.json."""
    (tmp_path / name).write_text("a model's")
    (tmp_path / owner).write_text("{}")
    command = ["vocab", str(corpus), "--size", "300", "--out"]
    for out in (tmp_path, tmp_path / "vocab.txt"):
        assert main([*command, str(out)]) == 2
        said = f"{tmp_path / name}: expected a new file, got the tokenizer that {owner} beside it was made with"
        assert said in capsys.readouterr().err
    assert {path.name: path.read_text() for path in tmp_path.iterdir() if path != corpus} == {
        name: "a model's",
        owner: "{}",
    }
    assert main([*command, str(tmp_path / "own.txt")]) == 0  # nothing reads it unasked


def test_vocab_gives_the_same_bytes_twice(corpus, tmp_path):
    paths = [tmp_path / f"vocab{number}.txt" for number in range(3)]
    for path in paths:
        assert main(["vocab", str(corpus), "--size", "300", "--out", str(path)]) == 0
    assert len({path.read_bytes() for path in paths}) == 1


def test_vocab_cased_into_a_directory(corpus, tmp_path, capsys):
    out = tmp_path / "tokenizer"
    assert main(["vocab", str(corpus), "--cased", "--size", "1000", "--out", str(out)]) == 0
    assert "(cased)" in capsys.readouterr().out
    tokenizer = load_tokenizer(out)
    assert tokenizer.decode(tokenizer.encode("The House").ids) == "The House"
    assert sorted(path.name for path in out.iterdir()) == ["tokenizer.json", "tokenizer_config.json", "vocab.txt"]
    # No two pieces meet so often: of letters alone there are fewer.
    assert main(["vocab", str(corpus), "--min-frequency", "1000000", "--size", "1000", "--out", str(out)]) == 0
    assert ", of the 1,000 asked for" in capsys.readouterr().out


def test_one_document_is_enough(corpus, tmp_path, capsys):
    (tmp_path / "a.txt").write_text("Only one document.\nIt has two sentences.\n")
    vocab = tmp_path / "v.txt"
    assert main(["vocab", str(corpus), "--size", "500", "--out", str(vocab)]) == 0
    assert main(["prepare", str(tmp_path / "a.txt"), "--vocab", str(vocab), "--out", str(tmp_path / "DATA")]) == 0
    assert "train: 1 document, 2 sentences" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty corpus"),
        (b"\x89PNG\0\0", "NUL"),
        (b"fine\nno\xfft\n", "bad.txt:2: expected UTF-8, got byte 0xff"),
    ],
)
@pytest.mark.parametrize("command", ["vocab", "prepare"])
def test_bad_corpus(corpus, tmp_path, capfd, command, content, words):
    bad, out = tmp_path / "bad.txt", tmp_path / "out.txt"
    bad.write_bytes(content)
    vocab = tmp_path / "v.txt"
    vocab.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nfine\nno\n##t\n")
    options = ["--vocab", str(vocab)] if command == "prepare" else ["--size", "100"]
    assert main([command, str(bad), *options, "--out", str(out)]) == 2
    stderr = capfd.readouterr().err
    assert words in stderr
    assert stderr.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.txt", "v.txt"]


def test_a_place_that_cannot_be_written_is_called_by_its_own_name(tmp_path, capfd):
    text, vocab = tmp_path / "a.txt", tmp_path / "v.txt"
    text.write_text("fine\n")
    vocab.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nfine\n")
    assert main(["prepare", str(text), "--vocab", str(vocab), "--out", str(text / "out")]) == 2
    assert capfd.readouterr().err == f"fastbert: {text / 'out'}: expected to read or write it, got: Not a directory\n"


def test_a_full_disk_leaves_no_directory_of_a_vocabulary(tmp_path, capfd, monkeypatch):
    def fsync(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / "a.txt").write_text("fine words\n")
    monkeypatch.setattr(files.os, "fsync", fsync)
    out = tmp_path / "V"
    assert main(["vocab", str(tmp_path / "a.txt"), "--size", "20", "--min-frequency", "1", "--out", str(out)]) == 2
    assert f"fastbert: {out / 'vocab.txt'}: expected to write" in capfd.readouterr().err
    assert not out.exists()


def test_errors_replace_goes_on(tmp_path, capfd):
    (tmp_path / "bad.txt").write_bytes(b"fine\nno\xfft\n\nmore of it\n")
    vocab = tmp_path / "v.txt"
    vocab.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nfine\nno\n##t\n")
    command = ["prepare", str(tmp_path / "bad.txt"), "--vocab", str(vocab), "--out", str(tmp_path / "out")]
    assert main([*command, "--errors", "replace"]) == 0
    # U+FFFD is removed by BERT's cleaning of text, so the word closes up.
    assert ShardSet.open(tmp_path / "out").sentence(1).tolist() == [6, 7]


def test_vocabulary_without_mask(corpus, tmp_path, capfd):
    vocab = tmp_path / "vocab.txt"
    vocab.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n")
    assert main(["prepare", str(corpus), "--vocab", str(vocab), "--out", str(tmp_path / "out")]) == 2
    stderr = capfd.readouterr().err
    assert "vocab.txt" in stderr
    assert "[MASK]" in stderr
    assert not (tmp_path / "out").exists()
