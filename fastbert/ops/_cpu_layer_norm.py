"""LN(residual + dropout(x + x_bias)) by the CPU kernels.

Kept for backward: the LayerNorm's float32 input (x itself if x is float32 and nothing is added) and two numbers per
row. Dropout is drawn again.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .. import _native
from ..rng import Dropout
from . import _cpu, _define, _dispatch, _dropout_schema
from ._gradients import LayerNormGradients
from .layer_norm import gradient_by


def _is_plain(x: Tensor, x_bias: Tensor | None, residual: Tensor | None, threshold: int) -> bool:
    """Whether the LayerNorm's input is x itself."""
    return x.dtype == torch.float32 and x_bias is None and residual is None and threshold == 0


def _forward(x, weight, bias, eps, x_bias, residual, threshold, seed, offset, site, rng, numbers, save):
    keep_sum = save and not _is_plain(x, x_bias, residual, threshold)
    x, residual, numbers = (None if t is None else t.contiguous() for t in (x, residual, numbers))
    weight, bias, x_bias = (_cpu.as_float32(p) for p in (weight, bias, x_bias))
    rows, columns = _cpu.rows_and_columns(x)
    out = torch.empty_like(x)
    total = _cpu.buffer(x.shape if keep_sum else 0)
    mean, rstd = _cpu.buffer(rows), _cpu.buffer(rows)
    _native.extension().layer_norm_forward(
        _cpu.code(x),
        *(_cpu.pointer(t) for t in (x, x_bias, residual, weight, bias)),
        eps,
        _cpu.native_dropout(threshold, seed, offset, site, rng, numbers),
        *(_cpu.pointer(t) for t in (out, total if keep_sum else None, mean, rstd)),
        rows,
        columns,
    )
    return out, total, mean, rstd


def _forward_fake(x, weight, bias, eps, x_bias, residual, threshold, seed, offset, site, rng, numbers, save):
    keep_sum = save and not _is_plain(x, x_bias, residual, threshold)
    rows = math.prod(x.shape[:-1])  # Size.numel() would turn a symbolic size into an int
    statistics = [x.new_empty(rows, dtype=torch.float32) for _ in range(2)]
    total = x.new_empty(x.shape if keep_sum else 0, dtype=torch.float32)
    return torch.empty_like(x, memory_format=torch.contiguous_format), total, *statistics


def _backward(dout, total, mean, rstd, weight, threshold, seed, offset, site, rng, numbers, has_residual, has_x_bias):
    dout, total, mean, rstd = (t.contiguous() for t in (dout, total, mean, rstd))
    numbers = None if numbers is None else numbers.contiguous()
    weight = _cpu.as_float32(weight)
    rows, columns = _cpu.rows_and_columns(dout)
    # Without dropout one tensor is the gradient of both the branch and the residual.
    apart = threshold != 0
    dx = torch.empty_like(dout)
    dresidual = torch.empty_like(dout) if apart and has_residual else dout.new_empty(0)
    dweight, dbias = _cpu.buffer(columns), _cpu.buffer(columns)
    dx_bias = _cpu.buffer(columns if has_x_bias else 0)
    workspace = _cpu.reduction_workspace(rows, 3 * columns)
    outputs = (
        dresidual if apart and has_residual else None,
        dx,
        dweight,
        dbias,
        dx_bias if has_x_bias else None,
        workspace,
    )
    _native.extension().layer_norm_backward(
        _cpu.code(dout),
        *(_cpu.pointer(t) for t in (dout, total, mean, rstd, weight)),
        _cpu.native_dropout(threshold, seed, offset, site, rng, numbers),
        *(_cpu.pointer(t) for t in outputs),
        rows,
        columns,
    )
    return dx, dresidual, dweight, dbias, dx_bias


def _backward_fake(
    dout, total, mean, rstd, weight, threshold, seed, offset, site, rng, numbers, has_residual, has_x_bias
):
    columns = dout.shape[-1]
    dx = torch.empty_like(dout, memory_format=torch.contiguous_format)
    dresidual = torch.empty_like(dx) if threshold != 0 and has_residual else dout.new_empty(0)
    dweight, dbias = (dout.new_empty(columns, dtype=torch.float32) for _ in range(2))
    return dx, dresidual, dweight, dbias, dout.new_empty(columns if has_x_bias else 0, dtype=torch.float32)


def _setup_context(ctx, inputs, output) -> None:
    x, weight, bias, ctx.eps, x_bias, residual, *dropout, rows, _save = inputs
    _, total, mean, rstd = output
    plain = _is_plain(x, x_bias, residual, dropout[0])
    ctx.mark_non_differentiable(mean, rstd, *([total] if plain else []))
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x if plain else total, mean, rstd, weight, rows)
    ctx.shape = x.shape
    ctx.dropout, ctx.has_residual, ctx.has_x_bias = dropout, residual is not None, x_bias is not None
    ctx.dtypes = weight.dtype, bias.dtype, x_bias.dtype if x_bias is not None else None


def _by_kernel(ctx, saved, dout: Tensor) -> LayerNormGradients:
    *tensors, rows = saved
    dx, dresidual, dweight, dbias, dx_bias = _layer_norm_backward(
        dout, *tensors, *ctx.dropout, rows, ctx.has_residual, ctx.has_x_bias
    )
    of_weight, of_bias, of_x_bias = ctx.dtypes
    dresidual = dresidual if ctx.dropout[0] else dx
    dx_bias = dx_bias.to(of_x_bias) if ctx.has_x_bias else None
    return LayerNormGradients(dx, dresidual, dweight.to(of_weight), dbias.to(of_bias), dx_bias)


def _dropout(ctx, saved) -> tuple[Dropout | None, Tensor | None]:
    return _dropout_schema.dropout_of(*ctx.dropout), saved[-1]


_layer_norm_backward = _define.define(
    "layer_norm_backward(Tensor dout, Tensor total, Tensor mean, Tensor rstd, Tensor weight, "
    f"{_dropout_schema.SCHEMA}, Tensor? rows, bool has_residual, bool has_x_bias) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    _backward,
    _backward_fake,
    tensors="dout: activation (..., C); total: float32 (..., C); mean: float32 (R); rstd: float32 (R); "
    f"weight: parameter (C); {_dropout_schema.TENSORS}; rows: int64 (R)",
)
_layer_norm = _define.define(
    "layer_norm(Tensor x, Tensor weight, Tensor bias, float eps, Tensor? x_bias, Tensor? residual, "
    f"{_dropout_schema.SCHEMA}, Tensor? rows, bool save) -> (Tensor, Tensor, Tensor, Tensor)",
    _forward,
    _forward_fake,
    backward=gradient_by(_by_kernel, _dropout, rest=7),
    setup_context=_setup_context,
    tensors="x: activation (..., C); weight: parameter (C); bias: parameter (C); x_bias: parameter (C); "
    f"residual: activation (..., C); {_dropout_schema.TENSORS}; rows: int64 (R)",
)


def _accepts(x, weight, bias, eps, *, x_bias=None, residual=None, dropout=None, rows=None) -> str | None:
    return _cpu.why_not(x, residual, parameters=(weight, bias, x_bias))


@_dispatch.register("layer_norm", "cpu", available=_native.why_missing, accepts=_accepts)
def layer_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    *,
    x_bias: Tensor | None = None,
    residual: Tensor | None = None,
    dropout: Dropout | None = None,
    rows: Tensor | None = None,
) -> Tensor:
    tensors = (x, weight, bias, x_bias, residual)
    save = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
    numbers = None if dropout is None else rows
    return _layer_norm(x, weight, bias, eps, x_bias, residual, *_dropout_schema.arguments(dropout), numbers, save)[0]
