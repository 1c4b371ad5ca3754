"""Softmax cross-entropy."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import reference
from ..errors import InputError
from . import _dispatch, _gradients

_dispatch.register("cross_entropy", "reference")(reference.cross_entropy)


def cross_entropy(logits: Tensor, labels: Tensor, *, ignore_index: int = -100, reduction: str = "mean") -> Tensor:
    """-log softmax(logits)[label], in nats.

    Args:
        logits: (N, V) floating.
        labels: (N,) int64; rows with ``ignore_index`` are ignored.
        reduction: "mean" over the rows that are not ignored, "sum", or "none".

    Returns:
        () or, with "none", (N,); float32 (float64 for float64 logits).

    Raises:
        InputError: shapes do not fit, there is no such reduction, or the CPU kernels find a label that is neither
            ``ignore_index`` nor in 0..V-1. (The reference raises torch's IndexError for one; GPUs do not look.)
    """
    if logits.dim() != 2 or labels.shape != logits.shape[:1]:
        raise InputError(f"logits must be (N, V) and labels (N,), got {tuple(logits.shape)} and {tuple(labels.shape)}")
    if reduction not in ("mean", "sum", "none"):
        raise InputError(f'reduction must be "mean", "sum" or "none", got {reduction!r}')
    return _dispatch.call("cross_entropy", logits, labels, ignore_index=ignore_index, reduction=reduction)


def reduced(loss: Tensor, labels: Tensor, ignore_index: int, reduction: str) -> Tensor:
    """Reduces the losses (N,) of rows, which are 0 for ignored ones."""
    if reduction == "none":
        return loss
    total = loss.sum()
    return total if reduction == "sum" else total / (labels != ignore_index).sum()


# Shared by the CPU and Triton ops, which map (logits, labels, ignore_index) to losses (N,) and the statistics of rows.
def backward_fake(dloss: Tensor, logits: Tensor, labels: Tensor, kept: Tensor, ignore_index: int) -> Tensor:
    return torch.empty_like(logits, memory_format=torch.contiguous_format)


def setup_context(ctx, inputs, output) -> None:
    logits, labels, ctx.ignore_index = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(logits, labels, output[1])


def gradient_again(ctx, saved, dloss: Tensor, _) -> tuple[Tensor | None, ...]:
    logits, labels, _ = saved
    return _gradients.cross_entropy(dloss, logits, labels, ctx.ignore_index), None, None
