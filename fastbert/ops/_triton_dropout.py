"""Dropout by Triton; its backward pass is the same op on the gradient, with the same random bits."""

from __future__ import annotations

import torch
from torch import Tensor

from ..rng import Dropout
from . import _define, _dispatch, _triton


def _forward(x, rng, site, threshold, scale, rows) -> Tensor:
    from ..triton_kernels import dropout

    if rng is None:
        return x.clone()
    return _define.in_shape(dropout.dropout(_triton.flat(x), rng, site, threshold, scale, rows), x.shape)


def _forward_fake(x, rng, site, threshold, scale, rows) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _setup_context(ctx, inputs, output) -> None:
    _, rng, *ctx.random, rows = inputs
    ctx.save_for_backward(rng, rows)


def _gradient(ctx, dout: Tensor):
    rng, rows = ctx.saved_tensors
    return _dropout(dout, rng, *ctx.random, rows), None, None, None, None, None


_dropout = _triton.define(
    f"triton_dropout(Tensor x, {_triton.RANDOM_SCHEMA}, Tensor? rows) -> Tensor",
    _forward,
    _forward_fake,
    backward=_gradient,
    setup_context=_setup_context,
)


def _accepts(x: Tensor, dropout: Dropout, rows: Tensor | None) -> str | None:
    return _triton.why_not(x) or _triton.why_not_wide(x)


@_dispatch.register("dropout", "triton", available=_triton.why_missing, accepts=_accepts)
def dropout(x: Tensor, dropout: Dropout, rows: Tensor | None) -> Tensor:
    return _dropout(x, *_triton.random_arguments(dropout, x.device), rows)
