"""The work of a worker process of `prepare`: converts sentences to token ids, in flat arrays that are cheap to return.

Imports neither torch nor the models: a worker must start quickly and stay small.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer

from .sentences import segment_lines, split_sentences
from .word_cache import WordCache

_HASH_RANGE = float(1 << 64)


@dataclass(frozen=True)
class WorkerSettings:
    """The settings of a worker: the tokenizer as JSON, the dtype of ids, how to segment lines, the id of [UNK]."""

    tokenizer: str
    dtype: str
    segment: str
    unk: int


@dataclass(frozen=True)
class Job:
    """Documents as (whether they are cut into sentences, lines), which of them are held out, and their characters."""

    documents: list[tuple[bool, list[str]]]
    heldout: list[bool]
    chars: int


@dataclass(frozen=True)
class EncodedDocuments:
    """Documents laid end to end.

    Args:
        tokens: (T,) uint16 or uint32.
        sentence_lengths: (S,) int32, in tokens.
        document_lengths: (D,) int32, in sentences.
        heldout: (D,) bool.
        unknown: the number of tokens that are [UNK].
        empty: the number of documents that were dropped because they have no token.
    """

    tokens: np.ndarray
    sentence_lengths: np.ndarray
    document_lengths: np.ndarray
    heldout: np.ndarray
    unknown: int
    empty: int

    def part(self, heldout: bool) -> EncodedDocuments:
        """Only the documents of one split."""
        if (self.heldout == heldout).all():
            return self
        documents = self.heldout == heldout
        sentences = np.repeat(documents, self.document_lengths)
        return EncodedDocuments(
            self.tokens[np.repeat(sentences, self.sentence_lengths)],
            self.sentence_lengths[sentences],
            self.document_lengths[documents],
            self.heldout[documents],
            self.unknown,
            self.empty,
        )


class Encoder:
    """Segments and encodes batches of documents; sentences and documents without tokens are dropped.

    Args:
        settings: the tokenizer, and how lines are cut.
    """

    def __init__(self, settings: WorkerSettings) -> None:
        tokenizer = Tokenizer.from_str(settings.tokenizer)
        # Text that contains "[SEP]" or "[MASK]" must not become a special token in the shards.
        tokenizer.encode_special_tokens = True
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._words, self._settings = WordCache(tokenizer), settings

    def __call__(self, job: Job) -> EncodedDocuments:
        settings = self._settings
        documents = [_sentences(lines, cut, settings.segment) for cut, lines in job.documents]
        sentences = list(itertools.chain.from_iterable(documents))
        tokens, sentence_lengths = self._words.encode(sentences, np.dtype(settings.dtype))
        counts = np.array([len(document) for document in documents], np.int64)
        filled = np.concatenate([[0], np.cumsum(sentence_lengths > 0)])
        ends = np.cumsum(counts)
        document_lengths = (filled[ends] - filled[ends - counts]).astype(np.int32)
        kept = document_lengths > 0
        return EncodedDocuments(
            tokens,
            sentence_lengths[sentence_lengths > 0],
            document_lengths[kept],
            np.array(job.heldout, bool)[kept],
            int((tokens == settings.unk).sum()),
            int((~kept).sum()),
        )


# That of a worker process. The process that prepares has none: it may prepare several data sets at the same time.
_encoder: Encoder | None = None


def begin_worker(settings: WorkerSettings) -> None:
    """Makes a worker process ready for `encode_job`."""
    global _encoder
    # There is a worker for each core; more threads would only compete with them.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _encoder = Encoder(settings)


def encode_job(job: Job) -> EncodedDocuments:
    """Encodes a batch of documents in a worker process."""
    return _encoder(job)


def is_heldout(lines: list[str], share: float) -> bool:
    """Whether a document belongs to the held-out split, by a hash of its text."""
    if share == 0:
        return False
    digest = hashlib.blake2b("\n".join(lines).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") / _HASH_RANGE < share


def _sentences(lines: list[str], cut: bool, segment: str) -> list[str]:
    if cut or segment == "never":
        return lines
    if segment == "auto":
        return segment_lines(lines)
    return [sentence for line in lines for sentence in split_sentences(line)]
