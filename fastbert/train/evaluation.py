"""Pre-training figures on held-out documents, each beside what guessing would reach."""

from __future__ import annotations

from contextlib import nullcontext

import torch

from ..data.pretraining import PretrainingData
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
) -> dict[str, float]:
    """Scores a pre-training model on the samples of the first epochs, whose pairs and masks are always the same.

    Args:
        model: with both pre-training heads (`BertForPreTraining`).
        max_tokens: how many tokens to read; None for all.
        epochs: how often to read the documents, each time with other pairs and masks.
        engine: whose precision to compute in; float32 without.

    Returns:
        mlm_loss in nats and mlm_acc; unigram_entropy in nats, the entropy of the distribution of the very targets that
        were predicted, which is the least loss of a model that knows their frequencies and nothing else;
        most_frequent_acc, what always guessing the most frequent target reaches; nsp_loss and nsp_acc where there are
        pairs; targets, pairs, tokens.
    """
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    sums = {"mlm_loss": 0.0, "mlm_acc": 0.0, "nsp_loss": 0.0, "nsp_acc": 0.0}
    labels, pairs, tokens = [], 0, 0
    budget = max(token_budget, data.config.max_seqlen)
    for epoch, sample_ids in [(number, ids) for number in range(epochs) for ids in data.batches(number, budget)]:
        batch = data.collate(epoch, sample_ids).to(device)
        with engine.autocast() if engine else nullcontext():
            out = model(batch)
        count = batch.mlm_labels.numel()
        if count:
            sums["mlm_loss"] += float(out.mlm_loss) * count
            sums["mlm_acc"] += float((out.mlm_logits.argmax(-1) == batch.mlm_labels).sum())
        if batch.nsp_labels is not None:
            sums["nsp_loss"] += float(out.nsp_loss) * batch.num_sequences
            sums["nsp_acc"] += float((out.nsp_logits.argmax(-1) == batch.nsp_labels).sum())
            pairs += batch.num_sequences
        labels.append(batch.mlm_labels.cpu())
        tokens += batch.num_tokens
        if max_tokens is not None and tokens >= max_tokens:
            break
    model.train(was_training)
    targets = torch.cat(labels)
    shares = torch.bincount(targets).double() / max(targets.numel(), 1)
    seen = shares[shares > 0]
    result = {name: sums[name] / max(targets.numel(), 1) for name in ("mlm_loss", "mlm_acc")}
    result["unigram_entropy"] = float(-(seen * seen.log()).sum())
    result["most_frequent_acc"] = float(shares.max()) if targets.numel() else 0.0
    if pairs:
        result |= {name: sums[name] / pairs for name in ("nsp_loss", "nsp_acc")}
    return {**result, "targets": targets.numel(), "pairs": pairs, "tokens": tokens}
