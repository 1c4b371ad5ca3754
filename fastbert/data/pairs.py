"""Which sentences make a sample: pairs for next-sentence prediction, or runs of full sentences.

Pairs follow Devlin et al. 2019 (section 3.1, task 2; appendix A.2) as google-research/bert does it: a run of sentences
is filled up to the target length and cut in two at a random sentence; in half of the samples the second part is
replaced by a run from another document, and the sentences it replaced are used again. Sentences are numbered through
the whole corpus, so a sample is a few integers.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np

from ..errors import DataError
from . import randomness

_WALK, _SIDES = 101, 102

# A run with a single sentence left can only get a random partner. Each one is paid back by a slightly smaller chance of
# a random partner afterwards, so that both labels stay at one half; 200 is how many samples a debt is spread over.
_BALANCE_OVER = 200


@dataclass(frozen=True)
class Plan:
    """The samples of an epoch: runs of sentences, and how many tokens are cut from the ends of each run.

    Args:
        a, b: (N, 2) int64 first and last + 1 sentence of each segment; b is empty where there is one segment.
        a_cut, b_cut: (N, 2) int64 tokens cut at the front and at the end.
        is_random: (N,) bool, the second segment is from another document.
        lengths: (N,) int64 tokens of the sample with its special tokens.
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
) -> Plan:
    """Sentence pairs [CLS] A [SEP] B [SEP] of at most max_seqlen tokens.

    Args:
        token_starts: (sentences + 1,) tokens before each sentence.
        document_starts: (documents + 1,) first sentence of each document.
        short_seq_prob: share of the documents that are cut into runs of a random shorter length.

    Raises:
        DataError: there is only one document, so no random partner can be found.
    """
    documents = len(document_starts) - 1
    if documents < 2:
        raise DataError(
            f"next-sentence pairs need sentences of another document: expected at least 2 documents, got {documents}"
        )
    room = max_seqlen - 3
    starts, bounds = token_starts.tolist(), document_starts.tolist()
    rng = randomness.generator(seed, epoch, _WALK)
    shorter = rng.random(documents) < short_seq_prob
    targets = np.where(shorter, rng.integers(2, room + 1, documents), room).tolist()
    draws = rng.random((len(starts), 4)).tolist()  # split, label, other document, its first sentence

    rows, balance = [], 0
    for document in range(documents):
        i, last, target = bounds[document], bounds[document + 1], targets[document]
        while i < last:
            split, label, other, place = draws[i]
            end = min(max(bisect_left(starts, starts[i] + target, i + 1, last), i + 2), last)
            alone = end - i == 1
            cut = end if alone else i + 1 + int(split * (end - i - 1))
            if alone or label < 0.5 - balance / _BALANCE_OVER:
                partner = int(other * (documents - 1))
                partner += partner >= document
                b = bounds[partner] + int(place * (bounds[partner + 1] - bounds[partner]))
                wanted = starts[b] + max(target - (starts[cut] - starts[i]), 1)
                b_end = bisect_left(starts, wanted, b + 1, bounds[partner + 1])
                rows.append((i, cut, b, b_end, 1))
                balance += 1
                i = cut
            else:
                rows.append((i, cut, cut, end, 0))
                balance -= 1
                i = end
    table = np.array(rows, dtype=np.int64).reshape(-1, 5)
    return _truncated(table, token_starts, room, randomness.generator(seed, epoch, _SIDES))


def _truncated(table: np.ndarray, token_starts: np.ndarray, room: int, rng: np.random.Generator) -> Plan:
    """Cuts tokens off the longer segment, one by one from its front or its end at random, until the pair fits."""
    a, b = table[:, 0:2], table[:, 2:4]
    a_len = token_starts[a[:, 1]] - token_starts[a[:, 0]]
    b_len = token_starts[b[:, 1]] - token_starts[b[:, 0]]
    excess = np.maximum(a_len + b_len - room, 0)
    # The longer one gives first; once they are equal they give in turn, B first.
    from_a = np.minimum(excess, np.maximum(a_len - b_len, 0))
    from_b = np.minimum(excess, np.maximum(b_len - a_len, 0))
    rest = excess - from_a - from_b
    from_a, from_b = from_a + rest // 2, from_b + (rest + 1) // 2
    a_front, b_front = rng.binomial(from_a, 0.5), rng.binomial(from_b, 0.5)
    return Plan(
        a=a,
        b=b,
        a_cut=np.stack([a_front, from_a - a_front], 1),
        b_cut=np.stack([b_front, from_b - b_front], 1),
        is_random=table[:, 4].astype(bool),
        lengths=a_len - from_a + b_len - from_b + 3,
    )


def plan_full_sentences(
    token_starts: np.ndarray, document_starts: np.ndarray, max_seqlen: int, seed: int, epoch: int
) -> Plan:
    """Runs of full sentences [CLS] A [SEP] for masked LM alone; a run never crosses a document.

    The first run of a document has a random length, so that the runs differ from epoch to epoch. A sentence longer than
    max_seqlen - 2 is cut into pieces.
    """
    room = max_seqlen - 2
    starts, bounds = token_starts.tolist(), document_starts.tolist()
    first_room = randomness.generator(seed, epoch, _WALK).integers(max(room // 2, 1), room + 1, len(bounds) - 1)
    rows = []
    for document, limit in enumerate(first_room.tolist()):
        i, last = bounds[document], bounds[document + 1]
        while i < last:
            # The last sentence that still ends within the limit; a first sentence that does not is taken alone.
            end = bisect_left(starts, starts[i] + limit + 1, i + 1, last + 1) - 1
            end = max(end, i + 1)
            length = starts[end] - starts[i]
            pieces = max(-(-length // room), 1)
            for piece in range(pieces):
                front, back = length * piece // pieces, length * (piece + 1) // pieces
                rows.append((i, end, front, length - back, back - front))
            i, limit = end, room
    table = np.array(rows, dtype=np.int64).reshape(-1, 5)
    return Plan(
        a=table[:, 0:2],
        b=np.zeros((len(table), 2), dtype=np.int64),
        a_cut=table[:, 2:4],
        b_cut=np.zeros((len(table), 2), dtype=np.int64),
        is_random=np.zeros(len(table), dtype=bool),
        lengths=table[:, 4] + 2,
    )
