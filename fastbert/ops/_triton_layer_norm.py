"""LN(residual + dropout(x + x_bias)) by Triton. Kept for backward: the LayerNorm's input and two numbers per row."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .. import fp8
from ..rng import Dropout
from . import _define, _dispatch, _triton, _triton_fp8
from ._gradients import LayerNormGradients
from .layer_norm import gradient_by


def _forward(x, weight, bias, eps, x_bias, residual, rng, site, threshold, scale, numbers, save):
    from ..triton_kernels import layer_norm as kernels

    rows, other = _triton.flat(x), _triton.flat(residual)
    out, total, mean, rstd = kernels.layer_norm_forward(
        rows, weight, bias, eps, x_bias, other, rng, site, threshold, scale, save, numbers=numbers
    )
    return _define.in_shape(out, x.shape), total, mean, rstd


def _forward_fake(x, weight, bias, eps, x_bias, residual, rng, site, threshold, scale, numbers, save):
    rows = math.prod(x.shape[:-1])  # Size.numel() would turn a symbolic size into an int
    statistics = [x.new_empty(rows, dtype=torch.float32) for _ in range(2)]
    total = x.new_empty((rows, x.shape[-1]) if save else 0)
    return torch.empty_like(x, memory_format=torch.contiguous_format), total, *statistics


def _backward(dout, total, mean, rstd, weight, rng, site, threshold, scale, numbers, has_residual, has_x_bias):
    from ..triton_kernels import layer_norm as kernels

    dx, dresidual, *sums = kernels.layer_norm_backward(
        _triton.flat(dout), total, mean, rstd, weight, rng, site, threshold, scale, has_residual, has_x_bias, numbers
    )
    return dx.view(dout.shape), dresidual.view(dout.shape if rng is not None and has_residual else 0), *sums


def _backward_fake(dout, total, mean, rstd, weight, rng, site, threshold, scale, numbers, has_residual, has_x_bias):
    columns = dout.shape[-1]
    dx = torch.empty_like(dout, memory_format=torch.contiguous_format)
    dresidual = torch.empty_like(dx) if rng is not None and has_residual else dout.new_empty(0)
    dweight, dbias = (dout.new_empty(columns, dtype=torch.float32) for _ in range(2))
    return dx, dresidual, dweight, dbias, dout.new_empty(columns if has_x_bias else 0, dtype=torch.float32)


def _setup_context(ctx, inputs, output) -> None:
    x, weight, bias, ctx.eps, x_bias, residual, rng, *ctx.random, numbers, _save = inputs
    _, total, mean, rstd = output
    ctx.mark_non_differentiable(mean, rstd)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(total, mean, rstd, weight, rng, numbers)
    ctx.shape = x.shape
    ctx.has_residual, ctx.has_x_bias = residual is not None, x_bias is not None
    ctx.dtypes = weight.dtype, bias.dtype, x_bias.dtype if x_bias is not None else None


def _by_kernel(ctx, saved, dout: Tensor) -> LayerNormGradients:
    *tensors, rng, numbers = saved
    dx, dresidual, dweight, dbias, dx_bias = _layer_norm_backward(
        dout, *tensors, rng, *ctx.random, numbers, ctx.has_residual, ctx.has_x_bias
    )
    of_weight, of_bias, of_x_bias = ctx.dtypes
    dresidual = dx if rng is None else dresidual
    dx_bias = dx_bias.to(of_x_bias) if ctx.has_x_bias else None
    return LayerNormGradients(dx, dresidual, dweight.to(of_weight), dbias.to(of_bias), dx_bias)


def _dropout(ctx, saved) -> tuple[Dropout | None, Tensor | None]:
    *_, rng, rows = saved
    return _triton.dropout_of(rng, *ctx.random[:2]), rows


_layer_norm_backward = _triton.define(
    "triton_layer_norm_backward(Tensor dout, Tensor total, Tensor mean, Tensor rstd, Tensor weight, "
    f"{_triton.RANDOM_SCHEMA}, Tensor? rows, bool has_residual, bool has_x_bias) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    _backward,
    _backward_fake,
)
_layer_norm = _triton.define(
    "triton_layer_norm(Tensor x, Tensor weight, Tensor bias, float eps, Tensor? x_bias, Tensor? residual, "
    f"{_triton.RANDOM_SCHEMA}, Tensor? rows, bool save) -> (Tensor, Tensor, Tensor, Tensor)",
    _forward,
    _forward_fake,
    backward=gradient_by(_by_kernel, _dropout, rest=6),
    setup_context=_setup_context,
)


def _accepts(x, weight, bias, eps, *, x_bias=None, residual=None, dropout=None, rows=None) -> str | None:
    if x.shape[-1] > 8192:
        return f"the Triton LayerNorm keeps a row on chip, at most 8192 columns, got {x.shape[-1]}"
    return _triton.why_not(x, residual, parameters=(weight, bias, x_bias))


@_dispatch.register("layer_norm", "triton", available=_triton.why_missing, accepts=_accepts)
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
    random, numbers = _triton.random_arguments(dropout, x.device), None if dropout is None else rows
    slot = fp8.output(weight)
    if slot is not None and not slot.scales.cold:
        return _triton_fp8.layer_norm(x, weight, bias, eps, x_bias, residual, random, slot, numbers)
    return _layer_norm(x, weight, bias, eps, x_bias, residual, *random, numbers, save)[0]
