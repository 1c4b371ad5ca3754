"""Bias + GELU."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import reference
from ..errors import InputError
from . import _dispatch, _gradients

_dispatch.register("gelu", "reference")(reference.gelu)


def gelu(x: Tensor, bias: Tensor | None = None, approximate: str = "none") -> Tensor:
    """GELU(x + bias).

    Args:
        x: (..., F) floating.
        bias: (F,) floating, or None.
        approximate: "none" = x * Phi(x) with the error function; "tanh" = the approximation of google-research/bert.

    Returns:
        (..., F), dtype of x.

    Raises:
        InputError: another ``approximate``, or a bias of another length.

    Ref:
        Hendrycks & Gimpel 2016, "Gaussian Error Linear Units", section 2.
    """
    if approximate not in ("none", "tanh"):
        raise InputError(f'approximate must be "none" or "tanh", got {approximate!r}')
    if bias is not None and bias.shape != x.shape[-1:]:
        raise InputError(f"bias must have shape {tuple(x.shape[-1:])} for x {tuple(x.shape)}, got {tuple(bias.shape)}")
    return _dispatch.call("gelu", x, bias, approximate)


# Shared by the CPU and Triton ops, which map (x, bias, tanh) to out, and (dout, x, bias, tanh) to dx and float32 dbias.
def forward_fake(x: Tensor, bias: Tensor | None, tanh: bool) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def backward_fake(dout: Tensor, x: Tensor, bias: Tensor | None, tanh: bool) -> tuple[Tensor, Tensor]:
    dx = torch.empty_like(x, memory_format=torch.contiguous_format)
    return dx, x.new_empty(0 if bias is None else x.shape[-1], dtype=torch.float32)


def setup_context(ctx, inputs, output) -> None:
    x, bias, ctx.tanh = inputs
    ctx.save_for_backward(x, bias)


def gradient_again(ctx, saved, dout: Tensor) -> tuple[Tensor | None, ...]:
    return *_gradients.gelu(dout, *saved, ctx.tanh), None
