"""Pre-training metrics on held-out documents, next to what guessing would reach."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext

import torch

from ..data.pretraining import PretrainingData
from ..modules.mode import evaluating
from ..packing import PackedBatch
from .distributed import World
from .engine import LocalEngine


@torch.no_grad()
def evaluate(
    model: torch.nn.Module,
    data: PretrainingData,
    *,
    max_tokens: int | None = None,
    epochs: int = 1,
    token_budget: int = 8192,
    engine: LocalEngine | None = None,
    stop: Callable[[], bool] | None = None,
    advance: Callable[[int], object] | None = None,
) -> dict[str, float] | None:
    """Scores a pre-training model on the samples of the first epochs, whose pairs and masks are always the same.

    Args:
        model: a model with pre-training heads, such as `BertForPreTraining`; left in the mode that it was in.
        data: the held-out samples.
        max_tokens: how many tokens to read, up to the end of a batch; None for all.
        epochs: how often to read the documents, each time with other pairs and masks.
        token_budget: the most tokens in a batch.
        engine: the engine whose precision is used and whose ranks share the batches; None computes in float32 on this
            process alone.
        stop: called before every batch, on all ranks alike; if it returns True, the evaluation ends without a result.
        advance: called after every batch with its number of tokens.

    Returns:
        mlm_loss in nats and mlm_acc; unigram_entropy in nats, the entropy of the distribution of these very targets,
        which is the least loss of a model that only knows their frequencies; most_frequent_acc, the accuracy of always
        predicting the most frequent target; nsp_loss in nats and nsp_acc if there are pairs; the numbers of targets,
        pairs and tokens. Accuracies are between 0 and 1. None if it was stopped.
    """
    device = next(model.parameters()).device
    sums = dict.fromkeys(_SUMS, 0.0)
    counts = torch.zeros(data.shards.manifest.vocab_size, dtype=torch.float64)
    with evaluating(model):
        for place, counted in _share(_places(data, max_tokens, epochs, token_budget), engine):
            if stop is not None and stop():
                return None
            batch = data.collate(*place).to(device)
            with engine.autocast() if engine else nullcontext():
                out = model(batch)
            if counted:
                _add(sums, batch, out)
                counts += torch.bincount(batch.mlm_labels.cpu(), minlength=len(counts))
            if advance is not None:
                advance(batch.num_tokens)
    if engine is not None and engine.world.size > 1:
        totals = engine.reduce([*sums.values(), *counts.tolist()])
        sums, counts = dict(zip(_SUMS, totals, strict=False)), torch.tensor(totals[len(_SUMS) :], dtype=torch.float64)
    return _figures(sums, counts)


_SUMS = ("mlm_loss", "mlm_acc", "nsp_loss", "nsp_acc", "targets", "pairs", "tokens")


def _places(data: PretrainingData, max_tokens: int | None, epochs: int, token_budget: int) -> list[tuple]:
    """(epoch, sample ids) of the batches that an evaluation reads."""
    chosen, tokens = [], 0
    for epoch in range(epochs):
        for sample_ids in data.batches(epoch, max(token_budget, data.config.max_seqlen)):
            chosen.append((epoch, sample_ids))
            tokens += int(data.lengths(epoch)[sample_ids].sum())
            if max_tokens is not None and tokens >= max_tokens:
                return chosen
    return chosen


def _share(places: list[tuple], engine: LocalEngine | None) -> Iterator[tuple[tuple, bool]]:
    """This rank's places, and whether each counts. All ranks get the same number, some to repeat without counting,
    because under ZeRO-3 a forward pass needs all ranks."""
    world = engine.world if engine else World()
    for first in range(0, len(places), world.size):
        number = first + world.rank
        yield places[min(number, len(places) - 1)], number < len(places)


def _add(sums: dict, batch: PackedBatch, out) -> None:
    count = batch.mlm_labels.numel()
    if count:
        sums["mlm_loss"] += float(out.mlm_loss) * count
        sums["mlm_acc"] += float((out.mlm_logits.argmax(-1) == batch.mlm_labels).sum())
        sums["targets"] += count
    if batch.nsp_labels is not None:
        sums["nsp_loss"] += float(out.nsp_loss) * batch.num_sequences
        sums["nsp_acc"] += float((out.nsp_logits.argmax(-1) == batch.nsp_labels).sum())
        sums["pairs"] += batch.num_sequences
    sums["tokens"] += batch.num_tokens


def _figures(sums: dict, counts: torch.Tensor) -> dict[str, float]:
    targets, pairs = int(sums["targets"]), int(sums["pairs"])
    shares = counts / max(targets, 1)
    seen = shares[shares > 0]
    result = {name: sums[name] / max(targets, 1) for name in ("mlm_loss", "mlm_acc")}
    result["unigram_entropy"] = float(-(seen * seen.log()).sum())
    result["most_frequent_acc"] = float(shares.max()) if targets else 0.0
    if pairs:
        result |= {name: sums[name] / pairs for name in ("nsp_loss", "nsp_acc")}
    return {**result, "targets": targets, "pairs": pairs, "tokens": int(sums["tokens"])}
