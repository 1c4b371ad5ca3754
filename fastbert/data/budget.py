"""Batches of one fixed shape: so many tokens, so many sequences, so many predictions, whatever the samples are.

A captured CUDA graph replays the same addresses and sizes, so a batch is filled up: with sequences of pads, which
attend to themselves alone, with empty sequences, and with predictions that no loss counts. Packs (`data.histogram`)
keep the pads to a fraction of a per cent; every batch holds packs of all kinds, so that its sequences have the lengths
of the whole epoch.

Batches are a pure function of (seed, epoch, budget), and each sample comes once an epoch.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import lru_cache

import numpy as np
import torch

from ..errors import InputError
from ..packing import PackedBatch
from . import randomness
from .histogram import Packs, efficiency, pack_histogram
from .pretraining import PretrainingData

_PACKS = 203  # a stream of random numbers of its own beside those of data.pretraining
_GOOD = 0.996  # share of full places at which larger packs are not tried


@dataclass(frozen=True)
class BatchShape:
    """Sizes of every batch.

    Args:
        tokens: T, with pads.
        sequences: B, those of pads and empty ones among them.
        predictions: N, those that do not count among them.
        max_seqlen: the longest sequence there may be.
    """

    tokens: int
    sequences: int
    predictions: int
    max_seqlen: int


@dataclass(frozen=True)
class StaticBatch(PackedBatch):
    """A `PackedBatch` filled up to a `BatchShape`; what was added has label -100.

    Args:
        real_tokens, real_sequences, real_labels: how much of it is data; sequences that are come first.
    """

    real_tokens: int = 0
    real_sequences: int = 0
    real_labels: int = 0

    @property
    def num_real_tokens(self) -> int:
        """Tokens that are data."""
        return self.real_tokens

    @property
    def num_real_sequences(self) -> int:
        """Sequences that are data."""
        return self.real_sequences

    @property
    def num_labels(self) -> int:
        """Tokens with a label."""
        return self.real_labels

    @property
    def num_pairs(self) -> int:
        """Sentence pairs that are data; 0 where there are none to predict."""
        return self.real_sequences if self.nsp_labels is not None else 0


def fill_up(batch: PackedBatch, shape: BatchShape, pad_id: int) -> StaticBatch:
    """Fills a batch up to a shape; one without predictions stays without.

    Raises:
        InputError: the batch has more of something than the shape.
    """
    tokens, sequences, labels = batch.num_tokens, batch.num_sequences, batch.num_labels
    pads = shape.tokens - tokens
    added = -(-pads // shape.max_seqlen)
    if pads < 0 or sequences + added > shape.sequences or labels > shape.predictions:
        raise InputError(
            f"a batch of shape {shape} was expected to hold {tokens} tokens, {sequences} sequences and {labels} "
            "predictions"
        )
    bounds = torch.full((shape.sequences + 1,), shape.tokens, dtype=torch.int32)
    bounds[: sequences + 1] = batch.cu_seqlens
    steps = torch.arange(1, added + 1, dtype=torch.int32) * shape.max_seqlen
    bounds[sequences + 1 : sequences + 1 + added] = (tokens + steps).clamp(max=shape.tokens)
    nsp, predictions = batch.nsp_labels, {}
    if batch.mlm_labels is not None:
        # Other places each: rows that are read twice would be added up in an order that nobody fixes.
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
            "position_ids": torch.cat([batch.position_ids, torch.arange(pads) % shape.max_seqlen]),
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
    """`PretrainingData` whose batches all have one shape; takes its place in a loader.

    Args:
        data: the samples.
        token_budget: tokens of a batch.

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
        """The shape of every batch of every epoch: what the first epoch needs, and a little more."""
        if self._shape is None:
            self._shape = self._make_shape()
        return self._shape

    def _most_predictions(self, lengths: np.ndarray) -> np.ndarray:
        """How many predictions the samples can have at most: all tokens but the special ones may be maskable."""
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
        # One long sample in a batch of its own must always fit.
        slots = max(slots, self._pad_sequences(0) + 2)
        predictions = max(predictions, int(self._most_predictions(np.array([longest]))[0]), 1)
        # Each has a place of its own among the tokens, of which next words leave few.
        return BatchShape(self._budget, _round_up(slots), min(_round_up(predictions), self._budget), longest)

    def _pad_sequences(self, tokens: int) -> int:
        return -(-(self._budget - tokens) // self.config.max_seqlen)

    def batches(self, epoch: int, token_budget: int | None = None) -> list[np.ndarray]:
        """Sample ids of each batch: every sample of the epoch once.

        Raises:
            InputError: another budget than that of this object.
        """
        if token_budget not in (None, self._budget):
            raise InputError(f"these batches are made for a token_budget of {self._budget}, got {token_budget}")
        return self._batches(epoch)

    def collate(self, epoch: int, sample_ids: np.ndarray) -> StaticBatch:
        """The batch of some samples of an epoch, filled up."""
        return fill_up(self._data.collate(epoch, sample_ids), self.shape, self._pad)

    def efficiency(self, epoch: int = 0) -> float:
        """Share of the executed tokens of an epoch that are data."""
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
        # A later epoch can need more than the first: what does not fit makes batches of its own.
        while over:
            ids = np.array([over.pop()])
            while over and fits(grown := np.append(ids, over[-1])):
                ids = grown
                over.pop()
            kept.append(ids)
        order = randomness.generator(self.config.seed, epoch, _PACKS, 1).permutation(len(kept))
        return [kept[i] for i in order if len(kept[i])]

    def _deal(self, epoch: int) -> list[np.ndarray]:
        """Packs dealt to batches so that each gets about as many samples, and packs of every size."""
        lengths = self.lengths(epoch)
        packs, number = _best_packs(np.bincount(lengths), self._budget, self.config.max_seqlen)
        draw = randomness.generator(self.config.seed, epoch, _PACKS, 0)
        samples, sizes = _members(packs, lengths, draw)
        order = np.argsort(-sizes + draw.random(len(sizes)), kind="stable")
        count = -(-len(order) // number)
        rounds, place = np.divmod(np.arange(len(order)), count)
        # To and fro, as teams are chosen: the batch that got the most in one round gets the least in the next.
        batch_of = np.empty(len(order), dtype=np.int64)
        batch_of[order] = np.where(rounds % 2 == 0, place, count - 1 - place)
        owner = np.repeat(batch_of, sizes)
        by_batch = np.argsort(owner, kind="stable")
        ends = np.cumsum(np.bincount(owner, minlength=count))[:-1]
        return np.split(samples[by_batch], ends)


def _best_packs(histogram: np.ndarray, budget: int, max_seqlen: int) -> tuple[list[Packs], int]:
    """Packs and how many of them make a batch: small packs mix best, larger ones waste less."""
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
    """The samples of all packs, one pack after the other, drawn at random among those of a length; and the packs' sizes
    in samples."""
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
    """Rounds up to a multiple of 8, with a little room for later epochs."""
    return -(-(number + number // 64 + 1) // 8) * 8


def real(batch: PackedBatch) -> PackedBatch:
    """The data of a batch without what `fill_up` added; any other batch as it is."""
    if not isinstance(batch, StaticBatch):
        return batch
    given = {f.name: getattr(batch, f.name) for f in fields(PackedBatch)}
    tokens = {name: given[name][: batch.real_tokens] for name in ("input_ids", "token_type_ids", "position_ids")}
    labels = {name: given[name][: batch.real_labels] for name in ("mlm_positions", "mlm_labels")}
    nsp = None if batch.nsp_labels is None else batch.nsp_labels[: batch.real_sequences]
    bounds = given["cu_seqlens"][: batch.real_sequences + 1]
    plain = PackedBatch(**given | tokens | labels | {"cu_seqlens": bounds, "nsp_labels": nsp})
    return replace(plain, max_seqlen=int(bounds.diff().max()) if batch.real_sequences else 0)
