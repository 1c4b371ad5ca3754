"""Texts in chunks: bounded by number and by length, whatever reads them."""

import numpy as np
import pytest
import tiny_bert

import fastbert
from fastbert.cli.main import main
from fastbert.data import chunks as chunking
from fastbert.data.chunks import CHARACTERS, chunks
from fastbert.tasks.encoding import encodings_of
from fastbert.tasks.features import token_features


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tiny_bert.save(tmp_path_factory.mktemp("model"), "BertModel", num_hidden_layers=1)


@pytest.mark.parametrize(
    ("texts", "cut"),
    [
        ([], []),
        (["ab", "c", "d"], [["ab", "c"], ["d"]]),
        (["abcd", "e", "f", "g", "h"], [["abcd"], ["e", "f", "g"], ["h"]]),
        (["a", "bcdefgh", "i"], [["a"], ["bcdefgh"], ["i"]]),
        ([("ab", "c"), ("d", "")], [[("ab", "c")], [("d", "")]]),
        ([["a", "b"], ["c"]], [[["a", "b"], ["c"]]]),
        ([["abcd"], ["e"], ["f"]], [[["abcd"]], [["e"], ["f"]]]),  # a list of one word that is long
        (["", "", "", ""], [["", "", ""], [""]]),
    ],
)
def test_a_chunk_has_at_most_so_many_texts_and_characters(texts, cut):
    assert list(chunks(iter(texts), 3, 3)) == cut


class Watched:
    """A tokenizer, and the number of texts of each of its calls."""

    def __init__(self, tokenizer):
        self.tokenizer, self.sizes = tokenizer, []

    def __getattr__(self, name):
        return getattr(self.tokenizer, name)

    def encode_batch(self, texts, **options):
        self.sizes.append(len(texts))
        return self.tokenizer.encode_batch(texts, **options)

    def encode_batch_fast(self, texts):
        self.sizes.append(len(texts))
        return self.tokenizer.encode_batch_fast(texts)


@pytest.mark.parametrize("reader", ["SentenceEncoder", "tasks", "token_features"])
def test_long_texts_are_not_encoded_all_at_once(reader, directory, monkeypatch):
    """500 documents of 100 KB took seven gigabytes."""
    texts = ["the film", "a" * (CHARACTERS // 2), "b" * (CHARACTERS // 2), "it is good"]
    tokenizer = Watched(fastbert.load_tokenizer(directory))
    if reader == "SentenceEncoder":
        encoder = fastbert.SentenceEncoder.from_pretrained(directory)
        encoder.tokenizer = Watched(encoder.tokenizer)
        whole = encoder.encode(texts)
        tokenizer = encoder.tokenizer
        np.testing.assert_array_equal(whole[1], whole[2])  # [UNK] both
    elif reader == "tasks":
        assert [e.tokens[1] for e in encodings_of(texts, tokenizer)] == ["the", "[UNK]", "[UNK]", "it"]
    else:
        monkeypatch.setattr("fastbert.tasks.features.private_copy", lambda *_: tokenizer)
        model = fastbert.BertModel.from_pretrained(directory)
        assert len(list(token_features(model, tokenizer, texts, "last"))) == 4
    assert tokenizer.sizes == [2, 2]


def test_encode_holds_so_many_characters_of_a_file(directory, tmp_path, monkeypatch):
    lines, out = tmp_path / "lines.txt", tmp_path / "vectors.npy"
    lines.write_text("the film\nit is good\nthe book\na\n")
    sizes, of = [], fastbert.SentenceEncoder.encode
    monkeypatch.setattr(
        fastbert.SentenceEncoder, "encode", lambda self, texts, **k: sizes.append(len(texts)) or of(self, texts, **k)
    )
    for characters, expected in ((chunking.WINDOW_CHARACTERS, [4]), (20, [2, 2])):
        monkeypatch.setattr(chunking, "WINDOW_CHARACTERS", characters)
        assert main(["encode", "--model", str(directory), "--out", str(out), str(lines)]) == 0
        assert sizes == expected
        sizes.clear()
    assert np.load(out).shape == (4, 32)
