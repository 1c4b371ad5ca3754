"""Softmax cross-entropy by the CPU kernels. Kept for backward: two numbers per row, where torch keeps (N, V)."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import _native
from ..errors import InputError
from ..wording import dtype_name
from . import _cpu, _define, _dispatch
from ._double_backward import differentiable
from .cross_entropy import backward_fake, gradient_again, reduced, setup_context


def _forward(logits: Tensor, labels: Tensor, ignore_index: int) -> tuple[Tensor, Tensor]:
    logits, labels = logits.contiguous(), labels.contiguous()
    loss, statistics = _cpu.buffer(len(labels)), _cpu.buffer((len(labels), 2))
    pointers = [t.data_ptr() for t in (logits, labels)], [t.data_ptr() for t in (loss, statistics)]
    bad = _native.extension().cross_entropy_forward(
        _cpu.code(logits), *pointers[0], ignore_index, *pointers[1], *logits.shape
    )
    _refuse(bad, logits, labels, ignore_index)
    return loss, statistics


def _refuse(row: int, logits: Tensor, labels: Tensor, ignore_index: int) -> None:
    """Raises InputError if a kernel has found a row whose label is out of range; -1 for none."""
    if row >= 0:
        allowed = f"{ignore_index} (ignored) or in 0..{logits.shape[1] - 1}"
        raise InputError(f"labels must be {allowed}, got {int(labels[row])} at {row}")


def _forward_fake(logits: Tensor, labels: Tensor, ignore_index: int) -> tuple[Tensor, Tensor]:
    num_rows = labels.shape[0]
    return logits.new_empty(num_rows, dtype=torch.float32), logits.new_empty(num_rows, 2, dtype=torch.float32)


def _backward(dloss: Tensor, logits: Tensor, labels: Tensor, statistics: Tensor, ignore_index: int) -> Tensor:
    dloss, logits, labels, statistics = (t.contiguous() for t in (dloss, logits, labels, statistics))
    dlogits = torch.empty_like(logits)
    pointers = [t.data_ptr() for t in (dloss, logits, labels, statistics)]
    bad = _native.extension().cross_entropy_backward(
        _cpu.code(logits), *pointers, ignore_index, dlogits.data_ptr(), *logits.shape
    )
    _refuse(bad, logits, labels, ignore_index)
    return dlogits


@differentiable(gradient_again)
def _gradient(ctx, saved, dloss: Tensor, _dstatistics):
    return _cross_entropy_backward(dloss, *saved, ctx.ignore_index), None, None


_cross_entropy_backward = _define.define(
    "cross_entropy_backward(Tensor dloss, Tensor logits, Tensor labels, Tensor statistics, int ignore_index) -> Tensor",
    _backward,
    backward_fake,
    tensors="dloss: float32 (N); logits: activation (N, V); labels: int64 (N); statistics: float32 (N, 2)",
)
_cross_entropy = _define.define(
    "cross_entropy(Tensor logits, Tensor labels, int ignore_index) -> (Tensor, Tensor)",
    _forward,
    _forward_fake,
    backward=_gradient,
    setup_context=setup_context,
    tensors="logits: activation (N, V); labels: int64 (N)",
)


def _accepts(logits: Tensor, labels: Tensor, *, ignore_index: int = -100, reduction: str = "mean") -> str | None:
    if labels.dtype != torch.int64:
        return f"the CPU kernels take int64 labels, got {dtype_name(labels.dtype)}"
    return _cpu.why_not_device(labels) or _cpu.why_not(logits)


@_dispatch.register("cross_entropy", "cpu", available=_native.why_missing, accepts=_accepts)
def cross_entropy(logits: Tensor, labels: Tensor, *, ignore_index: int = -100, reduction: str = "mean") -> Tensor:
    return reduced(_cross_entropy(logits, labels, ignore_index)[0], labels, ignore_index, reduction)
