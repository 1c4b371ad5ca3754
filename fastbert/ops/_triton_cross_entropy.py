"""Softmax cross-entropy by Triton. Labels are not checked: the host would have to wait for the device in every step."""

from __future__ import annotations

import torch
from torch import Tensor

from . import _dispatch, _triton, _triton_linear, _watchers
from ._double_backward import differentiable
from .cross_entropy import backward_fake, gradient_again, reduced, setup_context


def _forward(logits: Tensor, labels: Tensor, ignore_index: int) -> tuple[Tensor, Tensor]:
    from ..triton_kernels import cross_entropy

    return cross_entropy.cross_entropy_forward(_triton.whole_rows(logits), labels.contiguous(), ignore_index)


def _forward_fake(logits: Tensor, labels: Tensor, ignore_index: int) -> tuple[Tensor, Tensor]:
    rows = labels.shape[0]
    return logits.new_empty(rows, dtype=torch.float32), logits.new_empty(rows, 2, dtype=torch.float32)


def _backward(
    dloss: Tensor, logits: Tensor, labels: Tensor, lse: Tensor, ignore_index: int, width: int | None = None
) -> Tensor:
    from ..triton_kernels import cross_entropy

    dloss, labels, lse = (t.contiguous() for t in (dloss, labels, lse))
    return cross_entropy.cross_entropy_backward(dloss, _triton.whole_rows(logits), labels, lse, ignore_index, width)


@differentiable(gradient_again)
def _gradient(ctx, saved, dloss: Tensor, _dlse):
    logits, labels, lse = saved
    width = None
    if not (torch.compiler.is_compiling() or _watchers.is_watched()):
        width = _triton_linear.filled_width(logits)
    if width is None:
        return _cross_entropy_backward(dloss, logits, labels, lse, ctx.ignore_index), None, None
    whole = _backward(dloss, logits, labels, lse, ctx.ignore_index, width)
    return _triton_linear.without_filling(whole, logits.shape[1]), None, None


_cross_entropy_backward = _triton.define(
    "triton_cross_entropy_backward(Tensor dloss, Tensor logits, Tensor labels, Tensor lse, int ignore_index) -> Tensor",
    _backward,
    backward_fake,
)
_cross_entropy = _triton.define(
    "triton_cross_entropy(Tensor logits, Tensor labels, int ignore_index) -> (Tensor, Tensor)",
    _forward,
    _forward_fake,
    backward=_gradient,
    setup_context=setup_context,
)


def _accepts(logits: Tensor, labels: Tensor, *, ignore_index: int = -100, reduction: str = "mean") -> str | None:
    if labels.dtype != torch.int64 or labels.device != logits.device:
        return (
            f"the Triton kernels take int64 labels on the device of the logits, got {labels.dtype} on {labels.device}"
        )
    return _triton.why_not(logits)


@_dispatch.register("cross_entropy", "triton", available=_triton.why_missing, accepts=_accepts)
def cross_entropy(logits: Tensor, labels: Tensor, *, ignore_index: int = -100, reduction: str = "mean") -> Tensor:
    return reduced(_cross_entropy(logits, labels, ignore_index)[0], labels, ignore_index, reduction)
