"""The remembered words give the library's ids, text by text."""

from __future__ import annotations

import random
from itertools import chain

import numpy as np
import pytest
from tokenizers import Tokenizer, models

from fastbert.data import word_cache
from fastbert.data.tokenizer import build_tokenizer, load_tokenizer
from fastbert.data.vocab_files import Normalisation, read_vocab
from fastbert.data.word_cache import WordCache

ODD = ["", "  ", "\t", "a\tb", "[MASK] [SEP]x", "É e\u0301 é", "x" * 101, "don't—stop…", "ÀÿßØ×÷", "\x00a\x07b\r\nc", "a\u00adb\u00a0c"]  # fmt: skip  # noqa: E501, RUF001
ODD += [
    "日本 ab",
    "İstanbul",
    "a‘b’“c”–d",  # noqa: RUF001
    "under_score #1 @x $5 ^~`|",
    "ﬁne",
    "naïve CAFÉ",
    "a\u2028b",
    "##ing",
    "🙂 ok",
]


def assert_equal(tokenizer, texts, calls=3):
    tokenizer.encode_special_tokens = True
    cache = WordCache(tokenizer)
    expected = [encoding.ids for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
    for _ in range(calls):
        ids, lengths = cache.encode(texts, np.dtype(np.uint16))
        assert lengths.tolist() == [len(row) for row in expected]
        assert ids.tolist() == list(chain.from_iterable(expected))
    return cache


@pytest.mark.parametrize("name", ["uncased", "cased", "chinese"])
def test_ids_are_the_library_s(shared_data, name):
    tokenizer = load_tokenizer(shared_data / "vocab" / f"bert-base-{name}-vocab.txt")
    lines = []
    for path in ("corpus/books.txt", "corpus/wikitext2_valid.txt", "sst2/dev.tsv", "xquad/xquad.zh.json"):
        content = (shared_data / path).read_text(encoding="utf-8").split("\n")
        lines += [line[:5000] for line in random.Random(0).sample(content, min(1500, len(content)))]
    cache = assert_equal(tokenizer, lines + ODD, calls=2)
    assert len(cache._ids) > 1000  # words were really remembered


def test_random_characters(shared_data):
    tokenizer = load_tokenizer(shared_data / "vocab" / "bert-base-cased-vocab.txt")
    rng = random.Random(1)
    characters = [chr(c) for c in range(0x180)] + list("‘’“”–—…†•€ﬁ漢\u0301\u200b\u3000 abc ABC")  # noqa: RUF001
    assert_equal(tokenizer, ["".join(rng.choices(characters, k=rng.randint(1, 30))) for _ in range(5_000)])


def test_memory_is_bounded(monkeypatch, shared_data):
    monkeypatch.setattr(word_cache, "_MAX_WORDS", 50)
    tokenizer = load_tokenizer(shared_data / "vocab" / "bert-base-uncased-vocab.txt")
    cache = WordCache(tokenizer)
    for number in range(20):
        cache.encode([f"word{number}{letter}" for letter in "abcdefghij"] + ["y" * 50, "漢字"], np.dtype(np.uint16))
        assert len(cache._ids) <= 60
        assert not {"y" * 50, "漢字"} & set(cache._ids)


def test_other_tokenizers_are_asked_whole(shared_data):
    vocab = read_vocab(shared_data / "vocab" / "bert-base-uncased-vocab.txt")
    added = build_tokenizer(vocab, Normalisation())
    added.add_tokens(["new york"])  # found across words
    assert_equal(added, ["in new york now", "new", "york"])
    # Without a pre-tokenizer a sentence is one word.
    bare = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1, "b": 2, "a b": 3}, unk_token="[UNK]"))
    assert_equal(bare, ["a b", "a", "b"])
