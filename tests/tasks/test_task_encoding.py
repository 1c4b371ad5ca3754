"""Rows to ids: in flat memory, and the same ids however many rows there are."""

from types import SimpleNamespace

import numpy as np
import pytest
import tiny_bert

import fastbert
from fastbert.tasks import encoding, registry
from fastbert.tasks.base import Row
from fastbert.tasks.config import FinetuneConfig

TEXTS = {"sst2": 1, "mrpc": 2, "swag": 5, "ner": 4, "squad1": 2}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return fastbert.load_tokenizer(tiny_bert.save(tmp_path_factory.mktemp("model"), "BertModel"))


def test_no_more_encodings_are_there_than_a_chunk_of_texts_has():
    """Each takes 100 bytes a token and more: those of MNLI's 392,702 pairs were three gigabytes."""
    sizes = []

    def encode_batch(inputs, add_special_tokens):
        assert add_special_tokens is False
        sizes.append(len(inputs))
        return [-i for i in inputs]

    count = 2 * encoding.CHUNK + 3
    found = encoding.encodings_of(range(count), SimpleNamespace(encode_batch=encode_batch), add_special_tokens=False)
    assert next(found) == 0
    assert sizes == [encoding.CHUNK]
    assert list(found) == [-i for i in range(1, count)]
    assert sizes == [encoding.CHUNK, encoding.CHUNK, 3]


@pytest.mark.parametrize("name", TEXTS)
def test_chunks_change_no_example_and_examples_are_arrays(name, tokenizer, monkeypatch):
    words = tiny_bert.WORDS.split()
    rng = np.random.default_rng(0)

    def text():
        return " ".join(rng.choice(words, rng.integers(1, 20)))

    rows = [Row(str(i), tuple(text() for _ in range(TEXTS[name]))) for i in range(8)]
    task = registry.get(name)
    task.configure(FinetuneConfig(max_seqlen=16, doc_stride=3))
    if name == "squad1":
        task.max_question = 4
    whole = task.encode(rows, tokenizer, 16)
    monkeypatch.setattr(encoding, "CHUNK", 3)
    parts = task.encode(rows, tokenizer, 16)
    assert len(parts) == len(whole)
    for one, other in zip(whole, parts, strict=True):
        assert (one.row, one.truncated) == (other.row, other.truncated)
        for a, b in ((one.input_ids, other.input_ids), (one.token_type_ids, other.token_type_ids)):
            assert a.dtype == np.int32
            np.testing.assert_array_equal(a, b)
    assert any(example.truncated for example in whole)
