"""Softmax cross-entropy, in nats, in float32 at least."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def cross_entropy(logits: Tensor, labels: Tensor, *, ignore_index: int = -100, reduction: str = "mean") -> Tensor:
    """-log softmax(logits)[label]: logits (N, V), labels (N,) int64 -> () or, with reduction "none", (N,)."""
    if logits.dtype != torch.float64:
        logits = logits.float()
    return F.cross_entropy(logits, labels, ignore_index=ignore_index, reduction=reduction)
