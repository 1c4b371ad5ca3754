"""Rows to ids: in flat memory, and the same ids however many rows there are."""

from types import SimpleNamespace

import numpy as np
import pytest
import tiny_bert
import tokenizers

import fastbert
from fastbert.data.truncation import SIDES, cut_at
from fastbert.tasks import encoding, features, input_transforms, registry
from fastbert.tasks.base import Row
from fastbert.tasks.config import FinetuneConfig

SMALL = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
SMALL["max_position_embeddings"] = 32
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
        return [text.lower() for text in inputs]

    texts = [f"A{i}" for i in range(2 * encoding.CHUNK + 3)]
    found = encoding.encodings_of(texts, SimpleNamespace(encode_batch=encode_batch), add_special_tokens=False)
    assert next(found) == "a0"
    assert sizes == [encoding.CHUNK]
    assert list(found) == [text.lower() for text in texts[1:]]
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


@pytest.mark.skipif(
    tokenizers.__version__ in ("0.23.1", "0.23.2"),
    reason="these two cut each text of a pair to max_seqlen first, and then take them for equally long",
)
@pytest.mark.parametrize("side", SIDES)
def test_texts_and_pairs_are_cut_as_the_library_cuts_them(side, tokenizer):
    rng, words = np.random.default_rng(1), tiny_bert.WORDS.split()
    cutter = encoding.private_copy(tokenizer)
    rows = [
        tuple(" ".join(rng.choice(words, size)) for size in rng.integers(0, 9, count))
        for count in (1, 2)
        for _ in range(100)
    ]
    truncated = 0
    for max_seqlen in (3, 4, 7, 8, 13):
        cut_at(cutter, max_seqlen, side)
        for row, found in zip(rows, encoding.encode_texts(rows, cutter, max_seqlen), strict=True):
            theirs = cutter.encode(*row)
            assert (found.ids.tolist(), found.type_ids.tolist()) == (theirs.ids, theirs.type_ids)
            assert found.truncated == bool(theirs.overflowing)
            truncated += found.truncated
    assert truncated > 100


@pytest.mark.parametrize("made_by", ["encode_texts", "token_features", "Transform"])
def test_what_is_cut_off_of_a_pair_is_not_kept(made_by, tokenizer, monkeypatch):
    """Of a pair the library keeps an encoding for each two pieces of both: two texts of 1,200 words took 38 MB."""
    private_copy = encoding.private_copy
    kept, texts = [], ("the film is good . " * 20, "a book " * 30)

    class Watched:
        def __init__(self, tokenizer):
            self.encoder = private_copy(tokenizer)

        def encode_batch(self, inputs, **options):
            found = self.encoder.encode_batch(inputs, **options)
            kept.extend(len(e.overflowing) for e in found)
            return found

    for module in (encoding, features, input_transforms):
        monkeypatch.setattr(module, "private_copy", Watched, raising=True)
    if made_by == "encode_texts":
        [row] = encoding.encode_texts([texts], tokenizer, 32)
    elif made_by == "token_features":
        model = fastbert.BertModel(fastbert.BertConfig(**SMALL, vocab_size=len(tiny_bert.VOCAB)))
        [row] = features.token_features(model, tokenizer, [texts], "last", truncate=True)
        assert len(row.tokens) == len(row.values) == 32
        assert row.ids == encoding.encode_texts([texts], tokenizer, 32)[0].ids.tolist()
    else:
        [row] = input_transforms.Transform(1, 2, 3).sequences([texts], tokenizer, 32)
    assert (len(row.ids), kept[0]) == (32, 0)


@pytest.mark.parametrize(
    ("cut", "rows", "most", "said"),
    [
        (5, 100, 512, None),
        (6, 100, 512, "6 of 100 training rows are longer than 16 tokens and were cut; --max-seqlen N (at most the "
                      "model's 512) keeps more"),
        (1, 1, None, "1 of 1 training row is longer than 16 tokens and was cut; --max-seqlen N keeps more"),
        (1200, 4800, 16, "1,200 of 4,800 training rows are longer than 16 tokens, the most that the model reads, and "
                         "were cut"),
    ],
)  # fmt: skip
def test_many_rows_that_were_cut_are_told_of(cut, rows, most, said, caplog):
    encoding.say_if_cut(cut, rows, 16, most, "training row")
    assert caplog.messages == ([] if said is None else [said])


@pytest.mark.parametrize("name", TEXTS)
def test_rows_that_are_read_in_windows_are_not_cut(name, tokenizer):
    words = (*tiny_bert.WORDS.split()[:8], *tiny_bert.WORDS.split()[:8])
    texts = words if name == "ner" else tuple(" ".join(words) for _ in range(TEXTS[name]))
    task = registry.get(name)
    task.max_question = 4
    examples = task.encode([Row("0", texts), Row("1", ("a", "film", "is")[: TEXTS[name]])], tokenizer, 16)
    assert encoding.count_cut(task, examples) == (name not in ("ner", "squad1"))
