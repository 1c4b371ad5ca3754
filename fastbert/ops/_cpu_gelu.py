"""Bias + GELU by the CPU kernels: one read and one write instead of torch's two of each."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import _native
from . import _cpu, _define, _dispatch
from ._double_backward import differentiable
from .gelu import backward_fake, forward_fake, gradient_again, setup_context


def _forward(x: Tensor, bias: Tensor | None, tanh: bool) -> Tensor:
    x, bias = x.contiguous(), _cpu.as_float32(bias)
    out = torch.empty_like(x)
    rows, columns = _cpu.rows_and_columns(x)
    pointers = [_cpu.pointer(t) for t in (x, bias, out)]
    _native.extension().gelu_forward(_cpu.code(x), tanh, *pointers, rows, columns)
    return out


def _backward(dout: Tensor, x: Tensor, bias: Tensor | None, tanh: bool) -> tuple[Tensor, Tensor]:
    dout, x, bias = dout.contiguous(), x.contiguous(), _cpu.as_float32(bias)
    rows, columns = _cpu.rows_and_columns(x)
    dx = torch.empty_like(x)
    dbias = _cpu.buffer(0 if bias is None else columns)
    workspace = None if bias is None else _cpu.reduction_workspace(rows, columns)
    pointers = [_cpu.pointer(t) for t in (dout, x, bias, dx, None if bias is None else dbias, workspace)]
    _native.extension().gelu_backward(_cpu.code(x), tanh, *pointers, rows, columns)
    return dx, dbias


@differentiable(gradient_again)
def _gradient(ctx, saved, dout: Tensor):
    x, bias = saved
    dx, dbias = _gelu_backward(dout, x, bias, ctx.tanh)
    return dx, None if bias is None else dbias.to(bias.dtype), None


_gelu_backward = _define.define(
    "gelu_backward(Tensor dout, Tensor x, Tensor? bias, bool tanh) -> (Tensor, Tensor)",
    _backward,
    backward_fake,
    tensors="dout: activation (..., C); x: activation (..., C); bias: parameter (C)",
)
_gelu = _define.define(
    "gelu(Tensor x, Tensor? bias, bool tanh) -> Tensor",
    _forward,
    forward_fake,
    backward=_gradient,
    setup_context=setup_context,
    tensors="x: activation (..., C); bias: parameter (C)",
)


def _accepts(x: Tensor, bias: Tensor | None = None, approximate: str = "none") -> str | None:
    return _cpu.why_not(x, parameters=(bias,))


@_dispatch.register("gelu", "cpu", available=_native.why_missing, accepts=_accepts)
def gelu(x: Tensor, bias: Tensor | None = None, approximate: str = "none") -> Tensor:
    if bias is not None and torch.is_grad_enabled() and (x.requires_grad or bias.requires_grad):
        # The op saves it. torch's own saves x + bias, so that a bias may be written before the backward pass.
        bias = bias.clone()
    return _gelu(x, bias, approximate == "tanh")
