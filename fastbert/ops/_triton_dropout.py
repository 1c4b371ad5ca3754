"""Dropout by Triton; its backward pass is the same op on the gradient, with the same random bits."""

from __future__ import annotations

import torch
from torch import Tensor

from ..rng import Dropout
from . import _dispatch, _triton


def _forward(x: Tensor, rng: Tensor | None, site: int, threshold: int, scale: float) -> Tensor:
    from ..triton_kernels import dropout

    return x.clone() if rng is None else dropout.dropout(_triton.flat(x), rng, site, threshold, scale).view(x.shape)


def _forward_fake(x: Tensor, rng: Tensor | None, site: int, threshold: int, scale: float) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _setup_context(ctx, inputs, output) -> None:
    _, rng, *ctx.random = inputs
    ctx.save_for_backward(rng)


def _gradient(ctx, dout: Tensor):
    return _dropout(dout, *ctx.saved_tensors, *ctx.random), None, None, None, None


_dropout = _triton.define(
    f"triton_dropout(Tensor x, {_triton.RANDOM_SCHEMA}) -> Tensor",
    _forward,
    _forward_fake,
    backward=_gradient,
    setup_context=_setup_context,
)


def _accepts(x: Tensor, dropout: Dropout) -> str | None:
    return _triton.why_not(x)


@_dispatch.register("dropout", "triton", available=_triton.why_missing, accepts=_accepts)
def dropout(x: Tensor, dropout: Dropout) -> Tensor:
    return _dropout(x, *_triton.random_arguments(dropout, x.device))
