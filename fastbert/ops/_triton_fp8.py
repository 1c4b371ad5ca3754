"""8-bit products, with Triton kernels that write their operands: LayerNorm, GELU, and a cast for other tensors.

They are not torch ops, since they change state: the tables in which they record the tensors' magnitudes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .. import fp8
from . import _define, _dispatch, _triton
from ._product_dtypes import product_dtype
from .linear_fp8 import Casts, apply, eight_bits, multiply, transposed, without_graph


def _ready(x: Tensor, slot: fp8.Slot) -> None:
    """In the first step, when no scale is known, computes one from the tensor itself, in a separate pass."""
    if slot.scales.cold:
        slot.note(x)


def _cast(x: Tensor, slot: fp8.Slot) -> Tensor:
    from ..triton_kernels import fp8 as kernels

    _ready(x, slot)
    return kernels.cast(x, slot)[0]


def _cast_weight(weight: Tensor, slot: fp8.Slot, out: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor]:
    from ..triton_kernels import fp8 as kernels

    _ready(weight, slot)
    return kernels.cast(weight.contiguous(), slot, across=True, out=out)[:2]


def _cast_gradient(dout: Tensor, slot: fp8.Slot, sums: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    from ..triton_kernels import fp8 as kernels

    _ready(dout, slot)
    return kernels.cast(dout, slot, across=True, sums=sums)


def _transpose(data: Tensor) -> Tensor:
    from ..triton_kernels import fp8 as kernels

    return kernels.transpose(data)


CASTS = Casts(_cast, _cast_weight, _cast_gradient, _transpose)


def _accepts(x: Tensor, weight: Tensor, bias: Tensor | None, site: fp8.Site) -> str | None:
    return _triton.why_not(x, parameters=(weight, bias))


@_dispatch.register("linear_fp8", "triton", available=_triton.why_missing, accepts=_accepts)
def linear_fp8(x: Tensor, weight: Tensor, bias: Tensor | None, site: fp8.Site) -> Tensor:
    return apply(x, weight, bias, site, CASTS)


class _LayerNorm(torch.autograd.Function):
    """The op of `_triton_layer_norm`, which here also casts its output to 8 bits."""

    @staticmethod
    def forward(ctx, x, weight, bias, eps, x_bias, residual, random, slot, numbers):
        from ..triton_kernels import layer_norm as kernels

        out, total, mean, rstd, data = kernels.layer_norm_forward(
            _triton.flat(x), weight, bias, eps, x_bias, _triton.flat(residual), *random, True, slot, numbers
        )
        ctx.save_for_backward(total, mean, rstd, weight, random[0], numbers)
        ctx.random = random[1:]
        ctx.dtypes = [None if t is None else t.dtype for t in (weight, bias, x_bias, residual)]
        ctx.mark_non_differentiable(data)
        ctx.set_materialize_grads(False)
        return _define.in_shape(out, x.shape), data

    @staticmethod
    @without_graph
    def backward(ctx, saved, dout, _):
        total, mean, rstd, weight, rng, numbers = saved
        weight_dtype, bias_dtype, x_bias_dtype, residual_dtype = ctx.dtypes
        has_residual, has_x_bias = residual_dtype is not None, x_bias_dtype is not None
        dx, dresidual, dweight, dbias, dx_bias = torch.ops.fastbert.triton_layer_norm_backward(
            dout, total, mean, rstd, weight, rng, *ctx.random, numbers, has_residual, has_x_bias
        )
        return (
            dx,
            dweight.to(weight_dtype),
            dbias.to(bias_dtype),
            None,
            dx_bias.to(x_bias_dtype) if has_x_bias else None,
            (dx if rng is None else dresidual) if has_residual else None,
            *(None,) * 3,
        )


def layer_norm(x, weight, bias, eps, x_bias, residual, random, slot: fp8.Slot, numbers: Tensor | None) -> Tensor:
    """LN(residual + dropout(x + x_bias)) with its 8-bit cast attached to it (`fp8.attach`)."""
    out, data = _LayerNorm.apply(x, weight, bias, eps, x_bias, residual, random, slot, numbers)
    fp8.attach(out, data)
    return out


class _Mlp(torch.autograd.Function):
    """gelu(x W1^T + b1) W2^T, where the GELU's output and the gradient of its input exist in 8 bits only."""

    @staticmethod
    def forward(ctx, x, data, weight1, bias1, weight2, up, down, tanh, dtype):
        from ..triton_kernels import fp8 as kernels

        (own1, across1), (own2, across2) = up.copies(_cast_weight), down.copies(_cast_weight)
        pre = multiply(data, own1, up.x.inverse, up.own.inverse, dtype, quick=True)
        hidden, hidden_across = kernels.gelu_cast(pre, bias1, tanh, down.x)
        out = multiply(hidden, own2, down.x.inverse, down.own.inverse, dtype, quick=True)
        ctx.save_for_backward(data, across1, across2, pre, hidden_across, bias1)
        ctx.sites, ctx.tanh, ctx.dtypes = (up, down), tanh, (x.dtype, weight1.dtype, bias1.dtype, weight2.dtype)
        return _define.in_shape(out, (*x.shape[:-1], weight2.shape[0]))

    @staticmethod
    @without_graph
    def backward(ctx, saved, dout):
        from ..triton_kernels import fp8 as kernels

        data, across1, across2, pre, hidden_across, bias1 = saved
        (up, down), (x_dtype, *dtypes) = ctx.sites, ctx.dtypes
        g, g_across, _ = _cast_gradient(_triton.flat(dout), down.grad, False)
        dweight2 = multiply(g_across, hidden_across, down.grad.inverse, down.x.inverse, torch.float32)
        dhidden = multiply(g, across2, down.grad.inverse, down.own.inverse, dout.dtype)
        g, g_across, dbias1 = kernels.gelu_backward_cast(dhidden, pre, bias1, ctx.tanh, up.grad)
        dx = multiply(g, across1, up.grad.inverse, up.own.inverse, dout.dtype).to(x_dtype)
        dweight1 = multiply(g_across, transposed(data, CASTS), up.grad.inverse, up.x.inverse, torch.float32)
        made = [t.to(dtype) for t, dtype in zip((dweight1, dbias1, dweight2), dtypes, strict=True)]
        return dx.view(*dout.shape[:-1], across1.shape[0]), None, *made, None, None, None, None


def _accepts_mlp(x: Tensor, weight1: Tensor, bias1: Tensor, weight2: Tensor, approximate: str = "none") -> str | None:
    sites = fp8.site(weight1), fp8.site(weight2)
    if None in sites:
        return "in 16 bits and more the products are torch's, one by one"
    if sites[0].x.scales.cold:
        return "in the first step each tensor is measured before it is cast"
    return _triton.why_not(x, parameters=(weight1, bias1, weight2))


@_dispatch.register("mlp", "triton", available=_triton.why_missing, accepts=_accepts_mlp)
def mlp(x: Tensor, weight1: Tensor, bias1: Tensor, weight2: Tensor, approximate: str = "none") -> Tensor:
    up, down = fp8.site(weight1), fp8.site(weight2)
    data = eight_bits(x, _triton.flat(x), up.x, CASTS)
    return _Mlp.apply(x, data, weight1, bias1, weight2, up, down, approximate == "tanh", product_dtype(x))
