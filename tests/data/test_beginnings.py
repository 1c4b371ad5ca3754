"""Long texts of which a tokenizer keeps the beginning: the same tokens, from a part of the text where that is safe."""

import random

import pytest
import tiny_bert
from tokenizers import AddedToken, Tokenizer, normalizers, pre_tokenizers

from fastbert.data.tokenizer import load_tokenizer
from fastbert.data.truncation import encode_beginnings

PIECES = [
    " ",
    " ",
    " ",
    "  ",
    "\n",
    "\t",
    "\u00a0",
    "\u3000",
    "\u200b",
    "\x01",
    "\u0301",
    "e\u0301",
    "\u4e2d",
    "\u03a3",
]
PIECES += ["good", "film", "is", "Paris", "unknown", "!", "-", "[MASK]", "[SEP]", "x" * 150, "\U0001f600"]


class Watched:
    """A tokenizer that remembers the longest text it was given."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer, self.longest = tokenizer, 0

    def __getattr__(self, name):
        return getattr(self._tokenizer, name)

    def encode_batch_fast(self, texts):
        self.longest = max(map(len, texts))
        return self._tokenizer.encode_batch_fast(texts)


@pytest.fixture
def tokenizer(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join([*tiny_bert.VOCAB, "\u4e2d", "\u03c3", "##\u0301"]) + "\n")
    return load_tokenizer(tmp_path / "vocab.txt")


def same(tokenizer, texts) -> int:
    """The longest text that was looked at, of those that were read in part last."""
    watched = Watched(tokenizer)
    found = encode_beginnings(watched, texts)
    for text, encoding, expected in zip(texts, found, tokenizer.encode_batch(texts), strict=True):
        assert encoding.ids == expected.ids, text[:200]
        assert encoding.attention_mask == expected.attention_mask
    return watched.longest


@pytest.mark.parametrize("most", [3, 8, 40])
def test_tokens_are_those_of_the_whole_text(tokenizer, most):
    tokenizer.enable_truncation(most)
    rng = random.Random(most)
    texts = ["".join(rng.choices(PIECES, k=rng.choice([0, 3, 30, 300, 2000]))) for _ in range(120)]
    texts += [" " * 9000 + "a film", "\u200b " * 3000 + "good", "film" * 3000, "[MASK] " * 2000, "\u4e2d" * 5000, ""]
    same(tokenizer, texts)


def test_of_prose_little_is_looked_at(tokenizer):
    text = "the film is very good . " * 5000
    tokenizer.enable_truncation(16)
    assert same(tokenizer, [text]) <= 16 * 16
    assert same(tokenizer, [text.replace(" ", "\n")]) <= 16 * 16
    assert same(tokenizer, [text, " " * 1000 + text]) <= 16 * 16 * 8
    # Where beginnings may have other tokens, or are not what is kept, the whole is looked at.
    tokenizer.enable_truncation(16, direction="left")
    assert same(tokenizer, [text]) == len(text)
    tokenizer.enable_truncation(16)
    tokenizer.add_tokens([AddedToken("film is")])
    assert same(tokenizer, [text]) == len(text)
    tokenizer.no_truncation()
    assert same(tokenizer, [text]) == len(text)


@pytest.mark.parametrize("blank", [" ", "\u00a0", "\t"])
def test_an_added_token_of_several_words_may_go_on_behind_any_blank(tokenizer, blank):
    tokenizer.add_tokens([AddedToken(blank.join(["film", "is", "very", "good"]))])
    tokenizer.enable_truncation(4)
    same(tokenizer, ["x" * count + " film is very good" * 50 for count in range(64)])


@pytest.mark.parametrize("part", ["normalizer", "pre_tokenizer"])
def test_tokenizers_of_other_kinds_look_at_the_whole_text(tokenizer, part):
    other = {"normalizer": normalizers.NFKC(), "pre_tokenizer": pre_tokenizers.Whitespace()}[part]
    setattr(tokenizer, part, other)
    tokenizer.enable_truncation(16)
    text = "the film is very good . " * 500
    assert same(tokenizer, [text]) == len(text)
