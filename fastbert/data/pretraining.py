"""Packed batches from shards, for pre-training by masked-LM or next-word and by next-sentence prediction.

Everything is a pure function of (seed, epoch, sample): which sentences make a sample, which tokens are masked, the
order and the batches. So there is no state to save, and any number of workers gives the same data.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from ..errors import DataError, InputError
from ..packing import PackedBatch
from ..wording import counted
from . import randomness
from .config import SampleConfig
from .masking import Masker
from .pairs import EpochPlan, plan_full_sentences, plan_pairs
from .shards import ShardSet

_MASKS, _ORDER = 201, 202


class PretrainingData:
    """The samples of one split, epoch by epoch.

    Args:
        shards: the token shards.
        config: how samples are made.
    """

    def __init__(self, shards: ShardSet, config: SampleConfig) -> None:
        self.shards = shards
        self.config = config
        self._token_starts = np.concatenate([[0], np.cumsum(shards.sentence_lengths, dtype=np.int64)])
        self._special = shards.manifest.special_ids
        self._masker = self._make_masker()
        # Making a plan takes far less time than an epoch; two are kept, for the transition between epochs.
        self._plan = lru_cache(maxsize=2)(self._make_plan)
        self._batches = lru_cache(maxsize=4)(self._make_batches)

    def __getstate__(self) -> dict:
        return {"shards": self.shards, "config": self.config}

    def __setstate__(self, state: dict) -> None:
        self.__init__(state["shards"], state["config"])

    def _make_masker(self) -> Masker | None:
        config, vocab_size = self.config, self.shards.manifest.vocab_size
        if config.objective == "causal":
            return None
        if self._special.mask == self._special.sep:
            raise DataError(f"{self.shards.directory}: objective mlm needs a vocabulary with [MASK], got a GPT's")
        maskable = np.ones(vocab_size, dtype=bool)
        maskable[list(self._special.all)] = False
        replacements = np.flatnonzero(maskable)
        continuation = None
        if config.whole_word:
            continuation = np.zeros(vocab_size, dtype=bool)
            vocabulary = self.shards.tokenizer().get_vocab(with_added_tokens=True)
            continuation[[index for token, index in vocabulary.items() if token.startswith("##")]] = True
        return Masker(
            config.mlm_probability,
            tuple(config.mask_mix),
            config.max_predictions,
            config.whole_word,
            self._special.mask,
            replacements,
            maskable,
            continuation,
        )

    def is_maskable(self, ids: np.ndarray) -> np.ndarray:
        """Which of these ids may be chosen for prediction: bool, of the same shape; all True if nothing is masked."""
        if self._masker is None:
            return np.ones(np.shape(ids), dtype=bool)
        return self._masker.maskable[ids]

    def _version(self, epoch: int) -> int:
        return epoch if self.config.duplication is None else epoch % self.config.duplication

    def plan(self, epoch: int) -> EpochPlan:
        """The samples of an epoch, in the order of the corpus.

        Raises:
            DataError: the split is empty, or has a single document, from which no pairs can be made.
        """
        return self._plan(self._version(epoch))

    def _make_plan(self, version: int) -> EpochPlan:
        config = self.config
        if not self.shards.num_sentences:
            raise DataError(
                f"{self.shards.directory}: expected at least one sentence in split {self.shards.split!r}, got none"
            )
        if config.nsp:
            return plan_pairs(
                self._token_starts,
                self.shards.document_starts,
                config.max_seqlen,
                config.short_seq_prob,
                config.seed,
                version,
            )
        return plan_full_sentences(
            self._token_starts, self.shards.document_starts, config.max_seqlen, config.seed, version
        )

    def lengths(self, epoch: int) -> np.ndarray:
        """(samples,) int64, the number of tokens of each sample."""
        return self.plan(epoch).lengths

    def batches(self, epoch: int, token_budget: int, shuffle: bool = True) -> list[np.ndarray]:
        """The sample ids of each batch: every sample of the epoch once, at most token_budget tokens a batch.

        Args:
            epoch: counted from 0.
            token_budget: tokens, special tokens included.
            shuffle: whether samples are in random order; otherwise they are in the order of the corpus.

        Raises:
            InputError: the budget is smaller than max_seqlen.
        """
        self.check_budget(token_budget)
        return self._batches(epoch, token_budget, shuffle)

    def check_budget(self, token_budget: int) -> None:
        """Raises InputError if a sample may be longer than this many tokens."""
        if token_budget < self.config.max_seqlen:
            raise InputError(
                f"token_budget must hold at least one sample of max_seqlen {self.config.max_seqlen} tokens, "
                f"got {token_budget}"
            )

    def _make_batches(self, epoch: int, token_budget: int, shuffle: bool) -> list[np.ndarray]:
        lengths = self.lengths(epoch)
        order = np.arange(len(lengths))
        if shuffle:
            randomness.generator(self.config.seed, epoch, _ORDER).shuffle(order)
        ends = np.cumsum(lengths[order])
        batches, first, used = [], 0, 0
        while first < len(order):
            last = int(np.searchsorted(ends, used + token_budget, side="right"))
            batches.append(order[first:last])
            first, used = last, int(ends[last - 1])
        return batches

    def collate(self, epoch: int, sample_ids: np.ndarray) -> PackedBatch:
        """Makes the packed batch of some samples of an epoch."""
        plan, special = self.plan(epoch), self._special
        segments = (plan.a, plan.b) if self.config.nsp else (plan.a,)
        self.shards.check_whole(np.concatenate([segment[sample_ids, 0] for segment in segments]).tolist())
        parts, lengths_a = [], []
        cls, sep = np.array([special.cls]), np.array([special.sep])
        for sample in sample_ids:
            a = self._segment(plan.a[sample], plan.a_cut[sample])
            parts += [cls, a, sep]
            lengths_a.append(len(a) + 2)
            if self.config.nsp:
                parts += [self._segment(plan.b[sample], plan.b_cut[sample]), sep]
        ids = np.concatenate(parts).astype(np.int64) if parts else np.empty(0, dtype=np.int64)
        lengths = plan.lengths[sample_ids]
        cu_seqlens = np.concatenate([[0], np.cumsum(lengths)])
        sample = np.repeat(np.arange(len(lengths)), lengths)
        position = np.arange(len(ids)) - cu_seqlens[sample]
        types = (position >= np.asarray(lengths_a, dtype=np.int64)[sample]).astype(np.int64)
        if self._masker is None:
            corrupted, (positions, labels) = ids, next_tokens(ids, cu_seqlens)
        else:
            keys = randomness.key(self.config.seed, self._version(epoch), _MASKS, np.asarray(sample_ids))
            corrupted, positions, labels = self._masker(ids, sample, position, keys)
        return PackedBatch(
            input_ids=torch.from_numpy(corrupted),
            token_type_ids=torch.from_numpy(types),
            position_ids=torch.from_numpy(position),
            cu_seqlens=torch.from_numpy(cu_seqlens.astype(np.int32)),
            max_seqlen=int(lengths.max()) if len(lengths) else 0,
            mlm_positions=torch.from_numpy(positions),
            mlm_labels=torch.from_numpy(labels),
            nsp_labels=torch.from_numpy(plan.is_random[sample_ids].astype(np.int64)) if self.config.nsp else None,
        )

    def _segment(self, sentences: np.ndarray, cut: np.ndarray) -> np.ndarray:
        tokens = self.shards.gather(int(sentences[0]), int(sentences[1]))
        return tokens[int(cut[0]) : len(tokens) - int(cut[1])]


def next_tokens(ids: np.ndarray, cu_seqlens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The targets of a left-to-right model: the positions that have a next token, and those next tokens.

    Args:
        ids: (T,) of sequences laid end to end.
        cu_seqlens: (B+1,) their bounds.

    Returns:
        positions (N,) int64, ascending, and labels (N,).
    """
    has_next = np.ones(len(ids), dtype=bool)
    ends = cu_seqlens[1:][np.diff(cu_seqlens) > 0]
    has_next[ends - 1] = False
    positions = np.flatnonzero(has_next)
    return positions, ids[positions + 1]


@dataclass(frozen=True)
class RealisedShares:
    """Counts in the data as it was made: of tokens, of masked tokens by kind, of pairs by label."""

    tokens: int
    maskable: int
    predicted: int
    to_mask: int
    to_random: int
    kept: int
    pairs: int
    random_pairs: int

    def __str__(self) -> str:
        chosen = max(self.predicted, 1)
        text = (
            f"{100 * self.predicted / max(self.maskable, 1):.2f} % of {counted(self.maskable, 'token')} predicted: "
            f"{100 * self.to_mask / chosen:.2f} % [MASK], {100 * self.to_random / chosen:.2f} % random, "
            f"{100 * self.kept / chosen:.2f} % kept"
        )
        if self.pairs:
            share = 100 * self.random_pairs / self.pairs
            text += f"; {share:.2f} % of {counted(self.pairs, 'pair')} with a random second segment"
        return text


def realised_shares(data: PretrainingData, max_tokens: int = 1_000_000) -> RealisedShares:
    """Counts over at least max_tokens tokens of the first epoch and, if it is shorter, of the following ones.

    A random replacement that happens to be the original token counts as kept.

    Raises:
        InputError: the objective masks nothing.
    """
    if data.config.objective != "mlm":
        raise InputError(f"shares of masked tokens are those of objective mlm, got {data.config.objective}")
    counts, epoch = np.zeros(8, dtype=np.int64), 0
    special = data.shards.manifest.special_ids
    while counts[0] < max_tokens:
        for sample_ids in data.batches(epoch, max(8192, data.config.max_seqlen)):
            batch = data.collate(epoch, sample_ids)
            now = batch.input_ids[batch.mlm_positions]
            original = batch.input_ids.numpy().copy()
            original[batch.mlm_positions.numpy()] = batch.mlm_labels.numpy()
            is_mask = int((now == special.mask).sum())
            is_same = int((now == batch.mlm_labels).sum())
            chosen = len(now)
            labels = batch.nsp_labels if batch.nsp_labels is not None else torch.empty(0)
            counts += (
                batch.num_tokens,
                int(data.is_maskable(original).sum()),
                chosen,
                is_mask,
                chosen - is_mask - is_same,
                is_same,
                labels.numel(),
                int(labels.sum()),
            )
            if counts[0] >= max_tokens:
                break
        if data.config.duplication is not None and epoch + 1 >= data.config.duplication:
            break
        epoch += 1
    return RealisedShares(*counts.tolist())
