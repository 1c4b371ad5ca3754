"""Which sentences make a sample: pairs for next-sentence prediction, or runs of full sentences.

Pairs are made as in google-research/bert (Devlin et al. 2019, section 3.1, task 2; appendix A.2): a run of sentences is
extended to the target length and split at a random sentence. In half of the samples the second part is replaced by a
run from another document, and the sentences that it replaces are used again. Sentences are numbered through the whole
corpus, so a sample is a few integers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..errors import DataError
from . import randomness

_WALK, _SIDES = 101, 102

# A run of a single sentence can only get a random partner. To keep both labels at one half, later samples then have a
# slightly smaller probability of a random partner; this is the number of samples over which that is spread.
_BALANCE_OVER = 200

# How many sentences are processed at a time.
_CHUNK = 1 << 18


@dataclass(frozen=True)
class EpochPlan:
    """The samples of an epoch: runs of sentences, and how many tokens are cut from the ends of each run.

    Args:
        a, b: (N, 2) first and last + 1 sentence of each segment, in the smallest dtype that holds them; b is empty if
            samples have one segment.
        a_cut, b_cut: (N, 2) tokens cut at the front and at the end.
        is_random: (N,) bool, whether the second segment is from another document.
        lengths: (N,) int64, the number of tokens of each sample, with its special tokens.
    """

    a: np.ndarray
    b: np.ndarray
    a_cut: np.ndarray
    b_cut: np.ndarray
    is_random: np.ndarray
    lengths: np.ndarray

    def __len__(self) -> int:
        return len(self.lengths)


def plan_pairs(
    token_starts: np.ndarray, document_starts: np.ndarray, max_seqlen: int, short_seq_prob: float, seed: int, epoch: int
) -> EpochPlan:
    """Sentence pairs [CLS] A [SEP] B [SEP] of at most max_seqlen tokens.

    Args:
        token_starts: (sentences + 1,) tokens before each sentence.
        document_starts: (documents + 1,) first sentence of each document.
        short_seq_prob: the share of the documents that are cut into runs of a random shorter length.

    Raises:
        DataError: there is only one document, so no random partner can be found.
    """
    documents = len(document_starts) - 1
    if documents < 2:
        raise DataError(
            f"next-sentence pairs need sentences of another document: expected at least 2 documents, got {documents}; "
            "nsp: false (--samples.no-nsp) makes samples without pairs"
        )
    room = max_seqlen - 3
    rng = randomness.generator(seed, epoch, _WALK)
    shorter = rng.random(documents) < short_seq_prob
    targets = np.where(shorter, rng.integers(2, room + 1, documents), room)
    tables, balance = [], 0
    for first, end in _chunks(document_starts):
        draws = rng.random((int(document_starts[end] - document_starts[first]), 4))
        rows, balance = _pairs_of(token_starts, document_starts, first, end, targets, draws, balance)
        tables.append(np.array(rows, dtype=_dtype(document_starts)).reshape(-1, 5))
    table = np.concatenate(tables)
    return _truncated(table, token_starts, room, randomness.generator(seed, epoch, _SIDES))


def _chunks(document_starts: np.ndarray) -> Iterator[tuple[int, int]]:
    """Runs of documents [first, end) of about _CHUNK sentences, so that the Python lists made from them stay small."""
    first, documents = 0, len(document_starts) - 1
    while first < documents:
        end = int(np.searchsorted(document_starts, document_starts[first] + _CHUNK, side="right")) - 1
        end = min(max(end, first + 1), documents)
        yield first, end
        first = end


def _dtype(starts: np.ndarray) -> type:
    """The smallest dtype that holds every one of these."""
    return np.int32 if starts[-1] < 1 << 31 else np.int64


def _pairs_of(token_starts, document_starts, first, end, targets, draws, balance) -> tuple[list[tuple], int]:
    """The pairs of documents [first, end): rows of (a, its end, b, its end, b is random), and the new balance.

    Args:
        draws: (sentences of these documents, 4) for each sentence: split, label, other document, its first sentence.
    """
    base, documents = int(document_starts[first]), len(document_starts) - 1
    bounds = document_starts[first : end + 1].tolist()
    starts = token_starts[base : bounds[-1] + 1].tolist()
    targets, draws = targets[first:end].tolist(), draws.tolist()
    rows = []
    for number, target in enumerate(targets):
        i, last = bounds[number], bounds[number + 1]
        while i < last:
            split, label, other, place = draws[i - base]
            stop = bisect_left(starts, starts[i - base] + target, i + 1 - base, last - base) + base
            stop = min(max(stop, i + 2), last)
            alone = stop - i == 1
            cut = stop if alone else i + 1 + int(split * (stop - i - 1))
            if alone or label < 0.5 - balance / _BALANCE_OVER:
                partner = int(other * (documents - 1))
                partner += partner >= first + number
                b, b_last = int(document_starts[partner]), int(document_starts[partner + 1])
                b += int(place * (b_last - b))
                wanted = int(token_starts[b]) + max(target - (starts[cut - base] - starts[i - base]), 1)
                rows.append((i, cut, b, bisect_left(token_starts, wanted, b + 1, b_last), 1))
                balance += 1
                i = cut
            else:
                rows.append((i, cut, cut, stop, 0))
                balance -= 1
                i = stop
    return rows, balance


def _truncated(table: np.ndarray, token_starts: np.ndarray, room: int, rng: np.random.Generator) -> EpochPlan:
    """Cuts tokens off the longer segment, one by one from its front or its end at random, until the pair fits."""
    a, b = table[:, 0:2], table[:, 2:4]
    a_len, b_len = _tokens(token_starts, a), _tokens(token_starts, b)
    excess = np.maximum(a_len + b_len - room, 0)
    # The longer segment is cut first; once they are equal, both are cut in turn, B first.
    from_a = np.minimum(excess, np.maximum(a_len - b_len, 0))
    from_b = np.minimum(excess, np.maximum(b_len - a_len, 0))
    excess -= from_a + from_b
    from_a += excess // 2
    from_b += (excess + 1) // 2
    del excess
    a_cut, b_cut = _at_both_ends(from_a, rng), _at_both_ends(from_b, rng)
    lengths = a_len.astype(np.int64) - from_a + b_len - from_b + 3
    return EpochPlan(a, b, a_cut, b_cut, table[:, 4].astype(bool), lengths)


def _tokens(token_starts: np.ndarray, runs: np.ndarray) -> np.ndarray:
    return (token_starts[runs[:, 1]] - token_starts[runs[:, 0]]).astype(np.int32)


def _at_both_ends(cut: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Splits cut (N,), the number of tokens to drop, at random into front and end: (N, 2)."""
    front = rng.binomial(cut, 0.5).astype(np.int32)
    return np.stack([front, cut - front], 1)


def plan_full_sentences(
    token_starts: np.ndarray, document_starts: np.ndarray, max_seqlen: int, seed: int, epoch: int
) -> EpochPlan:
    """Runs of full sentences [CLS] A [SEP], for masked LM only; a run never crosses documents.

    The first run of a document has a random length, so that the runs differ from epoch to epoch. A sentence longer than
    max_seqlen - 2 is cut into pieces. Arguments are as in `plan_pairs`.
    """
    room = max_seqlen - 2
    draw = randomness.generator(seed, epoch, _WALK)
    limits = draw.integers(max(room // 2, 1), room + 1, len(document_starts) - 1)
    tables = []
    for first, end in _chunks(document_starts):
        rows = _runs_of(token_starts, document_starts[first : end + 1], limits[first:end].tolist(), room)
        tables.append(np.array(rows, dtype=_dtype(token_starts)).reshape(-1, 5))
    table = np.concatenate(tables)
    return EpochPlan(
        a=table[:, 0:2],
        b=np.zeros((len(table), 2), dtype=np.int8),
        a_cut=table[:, 2:4],
        b_cut=np.zeros((len(table), 2), dtype=np.int8),
        is_random=np.zeros(len(table), dtype=bool),
        lengths=table[:, 4].astype(np.int64) + 2,
    )


def _runs_of(token_starts, document_starts, limits: list[int], room: int) -> list[tuple]:
    """The runs of consecutive documents: rows of (sentence, end, tokens cut in front, behind, left)."""
    bounds, base = document_starts.tolist(), int(document_starts[0])
    starts = token_starts[base : bounds[-1] + 1].tolist()
    rows = []
    for document, limit in enumerate(limits):
        i, last = bounds[document], bounds[document + 1]
        while i < last:
            # The last sentence that ends within the limit; a first sentence that does not makes a run by itself.
            end = bisect_left(starts, starts[i - base] + limit + 1, i + 1 - base, last + 1 - base) - 1 + base
            end = max(end, i + 1)
            length = starts[end - base] - starts[i - base]
            pieces = max(-(-length // room), 1)
            for piece in range(pieces):
                front, back = length * piece // pieces, length * (piece + 1) // pieces
                rows.append((i, end, front, length - back, back - front))
            i, limit = end, room
    return rows
