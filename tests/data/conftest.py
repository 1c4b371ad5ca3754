"""Corpora whose samples can be checked without knowing how they were made."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest

from fastbert.data.manifest import Manifest, SpecialIds
from fastbert.data.prepare import prepare
from fastbert.data.shard_writer import ShardWriter
from fastbert.data.shards import ShardSet

PAD, UNK, CLS, SEP, MASK = SPECIAL = tuple(range(5))
FIRST = len(SPECIAL)


@dataclass(frozen=True)
class Sample:
    """A sample as the model would read it without masks, as places of its tokens in the corpus."""

    a: np.ndarray
    b: np.ndarray | None
    label: int | None
    length: int


@dataclass(frozen=True)
class NumberedCorpus:
    """Every token of the corpus has an id of its own: its place + 5. So a token says where it comes from.

    Args:
        document_of, sentence_of: (tokens,) numbers through the corpus.
    """

    shards: ShardSet
    document_of: np.ndarray
    sentence_of: np.ndarray

    @staticmethod
    def unmasked(batch) -> np.ndarray:
        ids = batch.input_ids.numpy().copy()
        ids[batch.mlm_positions.numpy()] = batch.mlm_labels.numpy()
        return ids

    def samples(self, batch) -> list[Sample]:
        """Reads a packed batch back; fails where it is not [CLS] A [SEP] B [SEP] or [CLS] A [SEP]."""
        ids, bounds, out = self.unmasked(batch), batch.cu_seqlens.tolist(), []
        for number, (first, last) in enumerate(pairwise(bounds)):
            row, types = ids[first:last], batch.token_type_ids.numpy()[first:last]
            assert batch.position_ids.tolist()[first:last] == list(range(last - first))
            seps = np.flatnonzero(row == SEP)
            paired = batch.nsp_labels is not None
            assert row[0] == CLS
            assert (row[1:] != CLS).all()
            assert len(seps) == 1 + paired
            assert seps[-1] == len(row) - 1
            assert types.tolist() == [0] * (seps[0] + 1) + [1] * (len(row) - seps[0] - 1)
            a, b = row[1 : seps[0]] - FIRST, row[seps[0] + 1 : -1] - FIRST
            label = int(batch.nsp_labels[number]) if paired else None
            out.append(Sample(a, b if paired else None, label, len(row)))
        return out


def _write(directory, lengths: list[list[int]], max_tokens: int) -> NumberedCorpus:
    """Documents given as the lengths of their sentences."""
    flat = [length for document in lengths for length in document]
    vocab_size = FIRST + sum(flat)
    writer, place = ShardWriter(directory, "train", vocab_size, max_tokens), FIRST
    for document in lengths:
        ends = place + np.cumsum(document)
        writer.add([np.arange(end - length, end) for end, length in zip(ends, document, strict=True)])
        place = int(ends[-1])
    entries = tuple(writer.close())
    manifest = Manifest(vocab_size, SpecialIds(*SPECIAL), "0" * 64, {"train": entries}, writer.files)
    (directory / "manifest.json").write_text(manifest.dumps())
    return NumberedCorpus(
        ShardSet.open(directory),
        np.repeat(np.arange(len(lengths)), [sum(document) for document in lengths]),
        np.repeat(np.arange(len(flat)), flat),
    )


@pytest.fixture
def number_corpus(tmp_path):
    """Makes a numbered corpus of the given sentence lengths."""
    return lambda lengths, max_tokens=10_000: _write(tmp_path, lengths, max_tokens)


def prose_lengths(seed: int, documents: int) -> list[list[int]]:
    """Sentence lengths as in books: 25 tokens on average with a long tail; one document in twenty is one sentence."""
    rng = random.Random(seed)
    return [
        [
            min(int(rng.gammavariate(2.0, 12.0)) + 1, 150)
            for _ in range(rng.randint(2, 80) if rng.random() > 0.05 else 1)
        ]
        for _ in range(documents)
    ]


@pytest.fixture(scope="session")
def numbered(tmp_path_factory) -> NumberedCorpus:
    """160 documents of about 40 sentences in many shards, about 160,000 tokens."""
    return _write(tmp_path_factory.mktemp("numbered"), prose_lengths(0, 160), 20_000)


@pytest.fixture(scope="session")
def small_numbered(tmp_path_factory) -> NumberedCorpus:
    """25 documents, about 25,000 tokens."""
    return _write(tmp_path_factory.mktemp("small_numbered"), prose_lengths(1, 25), 5_000)


@pytest.fixture(scope="session")
def worded(tmp_path_factory) -> ShardSet:
    """Words of one to four pieces, some of them unknown."""
    directory = tmp_path_factory.mktemp("worded")
    stems, endings = [a + b for a in "bdfgk" for b in "aeiou"], ["##" + c + d for c in "lmnr" for d in "aeiou"]
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *stems, *endings]
    (directory / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    rng = random.Random(0)

    def word():
        if rng.random() < 0.05:
            return "xyz"
        return rng.choice(stems) + "".join(rng.choice(endings)[2:] for _ in range(rng.choice([0, 0, 1, 2, 3])))

    documents = [
        (str(n), [" ".join(word() for _ in range(rng.randint(3, 20))) for _ in range(rng.randint(3, 40))])
        for n in range(60)
    ]
    prepare(documents, directory / "vocab.txt", directory / "data", num_workers=1)
    return ShardSet.open(directory / "data")


@pytest.fixture(scope="session")
def book_shards(shared_data, tmp_path_factory) -> ShardSet:
    """The first four million characters of the books with BERT's uncased vocabulary: close to a million tokens."""
    directory = tmp_path_factory.mktemp("books")
    text = (shared_data / "corpus" / "books.txt").read_text(encoding="utf-8")[:4_600_000]
    (directory / "books.txt").write_text(text[: text.rindex("\n\n")], encoding="utf-8")
    vocab = shared_data / "vocab" / "bert-base-uncased-vocab.txt"
    prepare(directory / "books.txt", vocab, directory / "data", num_workers=1)
    return ShardSet.open(directory / "data")
