"""Batches of one fixed shape: every batch has the same number of tokens, sequences and predictions.

A captured CUDA graph replays the same addresses and sizes, so batches are padded: with sequences of pad tokens, which
attend only to each other, with empty sequences, and with predictions that the loss ignores. Packing samples
(`data.histogram`) keeps the pad tokens to a fraction of a per cent; every batch holds packs of all kinds, so that its
lengths are distributed as in the whole epoch.

Batches are a pure function of (seed, epoch, budget), and each sample comes once an epoch.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import lru_cache

import numpy as np
import torch

from ..errors import InputError
from ..packing import PackedBatch
from . import randomness
from .histogram import Packs, efficiency, pack_histogram
from .pretraining import PretrainingData

_PACKS = 203  # the number of this module's random stream, besides those of data.pretraining
_GOOD = 0.996  # share of tokens that are not pads, from which larger packs are not tried


@dataclass(frozen=True)
class BatchShape:
    """The sizes of every batch.

    Args:
        tokens: T, including pads.
        sequences: B, including empty sequences and those of pads.
        predictions: N, including ignored ones.
        max_seqlen: the length of the longest sequence that may occur.
    """

    tokens: int
    sequences: int
    predictions: int
    max_seqlen: int


@dataclass(frozen=True)
class StaticBatch(PackedBatch):
    """A `PackedBatch` padded to a `BatchShape`; labels that were added are -100.

    Args:
        real_tokens, real_sequences, real_labels: how many of each are data; these come first.
    """

    real_tokens: int = 0
    real_sequences: int = 0
    real_labels: int = 0

    @property
    def num_real_tokens(self) -> int:
        """The number of tokens that are data."""
        return self.real_tokens

    @property
    def num_real_sequences(self) -> int:
        """The number of sequences that are data."""
        return self.real_sequences

    @property
    def num_labels(self) -> int:
        """The number of tokens with a label."""
        return self.real_labels

    @property
    def num_pairs(self) -> int:
        """The number of sentence pairs that are data; 0 without next-sentence prediction."""
        return self.real_sequences if self.nsp_labels is not None else 0


def fill_up(batch: PackedBatch, shape: BatchShape, pad_id: int) -> StaticBatch:
    """Pads a batch to a shape. A batch without predictions gets none.

    Raises:
        InputError: the batch is larger than the shape.
    """
    tokens, sequences, labels = batch.num_tokens, batch.num_sequences, batch.num_labels
    pads = shape.tokens - tokens
    added = -(-pads // shape.max_seqlen)
    if pads < 0 or sequences + added > shape.sequences or labels > shape.predictions:
        raise InputError(
            f"a batch of shape {shape} was expected to hold {tokens} tokens, {sequences} sequences and {labels} "
            "predictions"
        )
    where = batch.input_ids.device  # not torch's default device
    bounds = torch.full((shape.sequences + 1,), shape.tokens, dtype=torch.int32, device=where)
    bounds[: sequences + 1] = batch.cu_seqlens
    steps = torch.arange(1, added + 1, dtype=torch.int32, device=where) * shape.max_seqlen
    bounds[sequences + 1 : sequences + 1 + added] = (tokens + steps).clamp(max=shape.tokens)
    nsp, predictions = batch.nsp_labels, {}
    if batch.mlm_labels is not None:
        # All at different tokens: the gradients of a row that is read twice would be summed in no fixed order.
        more = shape.predictions - labels
        free = np.setdiff1d(np.arange(shape.tokens), batch.mlm_positions.numpy(), assume_unique=True)[:more]
        predictions = {
            "mlm_positions": torch.cat([batch.mlm_positions, torch.from_numpy(free)]),
            "mlm_labels": _extend(batch.mlm_labels, more, -100),
        }
    given = {f.name: getattr(batch, f.name) for f in fields(PackedBatch)}
    return StaticBatch(
        **given
        | {
            "input_ids": _extend(batch.input_ids, pads, pad_id),
            "token_type_ids": _extend(batch.token_type_ids, pads, 0),
            "position_ids": torch.cat([batch.position_ids, torch.arange(pads, device=where) % shape.max_seqlen]),
            "cu_seqlens": bounds,
            "max_seqlen": shape.max_seqlen,
            **predictions,
            "nsp_labels": None if nsp is None else _extend(nsp, shape.sequences - sequences, -100),
        },
        real_tokens=tokens,
        real_sequences=sequences,
        real_labels=labels,
    )


def _extend(x: torch.Tensor, more: int, value: int) -> torch.Tensor:
    return torch.cat([x, x.new_full((more,), value)])


class BudgetData:
    """`PretrainingData` whose batches all have one shape, with the same interface for a loader.

    Args:
        data: the samples.
        token_budget: the number of tokens of a batch.

    Raises:
        InputError: the budget is smaller than max_seqlen.
    """

    def __init__(self, data: PretrainingData, token_budget: int) -> None:
        data.check_budget(token_budget)
        self._data, self._budget = data, token_budget
        self.config, self.shards = data.config, data.shards
        self._pad = data.shards.manifest.special_ids.pad
        self._batches = lru_cache(maxsize=2)(self._make_batches)
        self._shape: BatchShape | None = None

    def __getstate__(self) -> dict:
        return {"data": self._data, "token_budget": self._budget}

    def __setstate__(self, state: dict) -> None:
        self.__init__(state["data"], state["token_budget"])

    def lengths(self, epoch: int) -> np.ndarray:
        """(samples,) int64 tokens of each sample."""
        return self._data.lengths(epoch)

    @property
    def shape(self) -> BatchShape:
        """The shape of every batch of every epoch: slightly more than the first epoch needs."""
        if self._shape is None:
            self._shape = self._make_shape()
        return self._shape

    def _most_predictions(self, lengths: np.ndarray) -> np.ndarray:
        """The largest number of predictions of each sample, if all but its special tokens are maskable."""
        config = self.config
        if config.objective == "causal":
            return np.maximum(lengths - 1, 0)
        maskable = lengths - (3 if config.nsp else 2)
        most = np.floor(maskable * config.mlm_probability).astype(np.int64) + 1
        if config.max_predictions is not None:
            most = np.minimum(most, config.max_predictions)
        return np.clip(most, 0, maskable)

    def _make_shape(self) -> BatchShape:
        lengths, longest = self.lengths(0), self.config.max_seqlen
        batches = self._deal(0)
        slots = max(len(b) + self._pad_sequences(int(lengths[b].sum())) for b in batches)
        predictions = max(int(self._most_predictions(lengths[b]).sum()) for b in batches)
        # A batch of a single long sample must always fit.
        slots = max(slots, self._pad_sequences(0) + 2)
        predictions = max(predictions, int(self._most_predictions(np.array([longest]))[0]), 1)
        # Each prediction needs a token of its own; with next-word prediction nearly all tokens are labelled.
        return BatchShape(self._budget, _round_up(slots), min(_round_up(predictions), self._budget), longest)

    def _pad_sequences(self, tokens: int) -> int:
        return -(-(self._budget - tokens) // self.config.max_seqlen)

    def batches(self, epoch: int, token_budget: int | None = None) -> list[np.ndarray]:
        """Sample ids of each batch: every sample of the epoch once.

        Raises:
            InputError: ``token_budget`` is not that of this object.
        """
        if token_budget not in (None, self._budget):
            raise InputError(f"these batches are made for a token_budget of {self._budget}, got {token_budget}")
        return self._batches(epoch)

    def collate(self, epoch: int, sample_ids: np.ndarray) -> StaticBatch:
        """Makes the padded batch of some samples of an epoch."""
        return fill_up(self._data.collate(epoch, sample_ids), self.shape, self._pad)

    def efficiency(self, epoch: int = 0) -> float:
        """The share of an epoch's tokens, with pads, that are data."""
        return float(self.lengths(epoch).sum()) / (len(self.batches(epoch)) * self._budget)

    def _make_batches(self, epoch: int) -> list[np.ndarray]:
        shape, lengths = self.shape, self.lengths(epoch)
        most = self._most_predictions(lengths)

        def fits(ids: np.ndarray) -> bool:
            tokens = int(lengths[ids].sum())
            return (
                tokens <= shape.tokens
                and len(ids) + self._pad_sequences(tokens) <= shape.sequences
                and int(most[ids].sum()) <= shape.predictions
            )

        kept, over = [], []
        for ids in self._deal(epoch):
            while len(ids) and not fits(ids):
                over.append(ids[-1])
                ids = ids[:-1]
            kept.append(ids)
        # A later epoch can need more than the first: samples that do not fit go into additional batches.
        while over:
            ids = np.array([over.pop()])
            while over and fits(grown := np.append(ids, over[-1])):
                ids = grown
                over.pop()
            kept.append(ids)
        order = randomness.generator(self.config.seed, epoch, _PACKS, 1).permutation(len(kept))
        return [kept[i] for i in order if len(kept[i])]

    def _deal(self, epoch: int) -> list[np.ndarray]:
        """Deals packs to batches so that all batches get about the same number of samples, and packs of every size."""
        lengths = self.lengths(epoch)
        packs, number = _best_packs(np.bincount(lengths), self._budget, self.config.max_seqlen)
        draw = randomness.generator(self.config.seed, epoch, _PACKS, 0)
        samples, sizes = _members(packs, lengths, draw)
        order = np.argsort(-sizes + draw.random(len(sizes)), kind="stable")
        count = -(-len(order) // number)
        rounds, place = np.divmod(np.arange(len(order)), count)
        # In alternating order: the batch that got the largest pack in one round gets the smallest in the next.
        batch_of = np.empty(len(order), dtype=np.int64)
        batch_of[order] = np.where(rounds % 2 == 0, place, count - 1 - place)
        owner = np.repeat(batch_of, sizes)
        by_batch = np.argsort(owner, kind="stable")
        ends = np.cumsum(np.bincount(owner, minlength=count))[:-1]
        return np.split(samples[by_batch], ends)


def _best_packs(histogram: np.ndarray, budget: int, max_seqlen: int) -> tuple[list[Packs], int]:
    """The packs, and how many of them make a batch: smaller packs mix better, larger ones waste less."""
    number, best = budget // max_seqlen, None
    while number:
        capacity = budget // number
        packs = pack_histogram(histogram, capacity)
        share = efficiency(packs, capacity) * capacity * number / budget
        if best is None or share > best[0]:
            best = share, packs, number
        if best[0] >= _GOOD:
            break
        number //= 2
    return best[1], best[2]


def _members(packs: list[Packs], lengths: np.ndarray, draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """The samples of all packs, one pack after the other, drawn at random among those of the same length; and the
    number of samples of each pack."""
    order = draw.permutation(len(lengths))
    order = order[np.argsort(lengths[order], kind="stable")]
    taken = np.searchsorted(lengths[order], np.arange(int(lengths.max()) + 1))
    samples, sizes = [], []
    for group in packs:
        columns = []
        for length, times in group.content:
            first = taken[length]
            taken[length] += group.count * times
            columns.append(order[first : taken[length]].reshape(group.count, times))
        samples.append(np.concatenate(columns, axis=1).ravel())
        sizes.append(np.full(group.count, group.samples))
    return np.concatenate(samples), np.concatenate(sizes)


def _round_up(number: int) -> int:
    """Rounds up to a multiple of 8, with a margin for later epochs."""
    return -(-(number + number // 64 + 1) // 8) * 8
