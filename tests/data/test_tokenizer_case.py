"""Directories whose tokenizer_config.json does not say whether case is kept: transformers lower-cases, whatever the
vocabulary, and a warning says where our ids are others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_bert import SPECIALS
from tokenizers import normalizers

from fastbert.data.tokenizer import _warn_of_guess, load_tokenizer

TEXT = "The Film"
CASED = [*SPECIALS, "The", "the", "Film", "film"]
UNCASED = [*SPECIALS, "the", "film"]


def directory_of(path: Path, vocab: list[str], kind: str | None, settings: dict | None, model: bool = True) -> Path:
    (path / "vocab.txt").write_text("\n".join(vocab) + "\n")
    if kind == "tokenizer.json":
        tokenizer = load_tokenizer(path / "vocab.txt")
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=vocab is UNCASED)
        tokenizer.save(str(path / kind))
    if settings is not None:
        (path / "tokenizer_config.json").write_text(json.dumps(settings))
    if model:
        (path / "config.json").write_text(json.dumps({"model_type": "bert", "vocab_size": len(vocab)}))
    return path


@pytest.mark.parametrize("kind", ["vocab.txt", "tokenizer.json"])
@pytest.mark.parametrize("settings", [None, {"tokenizer_class": "BertTokenizer", "model_max_length": 512}])
def test_a_cased_vocabulary_keeps_case_and_a_warning_says_that_transformers_does_not(kind, settings, tmp_path, caplog):
    transformers = pytest.importorskip("transformers")
    directory = directory_of(tmp_path, CASED, kind, settings)
    assert load_tokenizer(directory).encode(TEXT).tokens[1:-1] == ["The", "Film"]
    assert transformers.AutoTokenizer.from_pretrained(directory).tokenize(TEXT) == ["the", "film"]
    assert (
        caplog.text.count(f"{directory / 'tokenizer_config.json'}: it has no do_lower_case: texts keep their case") == 1
    )
    caplog.clear()
    load_tokenizer(directory)
    assert not caplog.text, "told once"
    # What the warning says to write: equal ids, and no warning, nor one that was only told before.
    _warn_of_guess.cache_clear()
    (directory / "tokenizer_config.json").write_text(json.dumps({**(settings or {}), "do_lower_case": False}))
    theirs = transformers.AutoTokenizer.from_pretrained(directory)
    assert load_tokenizer(directory).encode(TEXT).ids == theirs(TEXT).input_ids
    assert not caplog.text


@pytest.mark.parametrize(
    ("vocab", "kind", "settings", "model"),
    [
        (UNCASED, "vocab.txt", None, True),
        (UNCASED, "tokenizer.json", None, True),
        (CASED, "vocab.txt", {"do_lower_case": False}, True),
        (CASED, "tokenizer.json", {"tokenizer_class": "PreTrainedTokenizerFast"}, True),
        pytest.param(CASED, "vocab.txt", None, False, id="no model, which transformers could not load"),
    ],
)
def test_no_warning_where_ids_are_transformers(vocab, kind, settings, model, tmp_path, caplog):
    load_tokenizer(directory_of(tmp_path, vocab, kind, settings, model))
    assert not caplog.text


def test_a_vocabulary_with_accents_keeps_them_and_a_warning_says_that_transformers_does_not(tmp_path, caplog):
    transformers = pytest.importorskip("transformers")
    directory = directory_of(tmp_path, [*SPECIALS, "été", "ete"], "vocab.txt", None)
    assert load_tokenizer(directory).encode("Été").tokens[1:-1] == ["été"]
    assert transformers.AutoTokenizer.from_pretrained(directory).tokenize("Été") == ["ete"]
    assert "texts keep their accents, as the vocabulary has accents; transformers removes them" in caplog.text
    caplog.clear()
    _warn_of_guess.cache_clear()
    (directory / "tokenizer_config.json").write_text(json.dumps({"strip_accents": False}))
    theirs = transformers.AutoTokenizer.from_pretrained(directory)
    assert load_tokenizer(directory).encode("Été").ids == theirs("Été").input_ids
    assert not caplog.text
