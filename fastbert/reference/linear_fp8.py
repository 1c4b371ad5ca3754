"""A dense layer whose operands are rounded to 8-bit floats (Micikevicius et al. 2022, "FP8 formats for deep learning").

    y = x' W'^T + b,   dx = dy' W',   dW = dy'^T x',   db = sum dy

where x', W' are x, W rounded to e4m3 and dy' is dy rounded to e5m2, each times its scale and divided by it again.
"""

from __future__ import annotations

import torch
from torch import Tensor

_LARGEST = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}


def quantize_fp8(x: Tensor, scale: Tensor, kind: torch.dtype) -> Tensor:
    """x times scale, rounded to 8 bits, to nearest, ties to even. Finite values that are too large become the largest
    number; infinities and NaN become NaN, which both formats have.

    Args:
        x: any shape, floating.
        scale: (1,) a power of two.
        kind: `torch.float8_e4m3fn` or `torch.float8_e5m2`: also the result's dtype.
    """
    limit = _LARGEST[kind]
    wide = x if x.dtype == torch.float64 else x.float()
    clipped = torch.where(wide.isfinite(), (wide * scale.to(wide.dtype)).clamp(-limit, limit), torch.nan)
    return clipped.float().to(kind)


def dequantize_fp8(data: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """data / scale, the inverse of `quantize_fp8` but for rounding: any shape, in ``dtype``; scale (1,)."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    return (data.to(torch.float32).to(wide) / scale.to(wide)).to(dtype)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, scale_x, scale_weight, scale_grad, dtype):
        rounded = [
            dequantize_fp8(quantize_fp8(t, s, torch.float8_e4m3fn), s, dtype)
            for t, s in ((x, scale_x), (weight, scale_weight))
        ]
        ctx.save_for_backward(*rounded)
        ctx.scale = scale_grad  # a reference: its value is read in the backward pass
        ctx.dtypes = x.dtype, weight.dtype, None if bias is None else bias.dtype
        return torch.nn.functional.linear(*rounded, None if bias is None else bias.to(dtype))

    @staticmethod
    def backward(ctx, dout):
        x, weight = ctx.saved_tensors
        x_dtype, weight_dtype, bias_dtype = ctx.dtypes
        g = dequantize_fp8(quantize_fp8(dout, ctx.scale, torch.float8_e5m2), ctx.scale, dout.dtype)
        dweight = g.flatten(0, -2).t() @ x.flatten(0, -2)
        dbias = None if bias_dtype is None else dout.flatten(0, -2).sum(0).to(bias_dtype)
        return (g @ weight).to(x_dtype), dweight.to(weight_dtype), dbias, None, None, None, None


def linear_fp8(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    scale_x: Tensor,
    scale_weight: Tensor,
    scale_grad: Tensor,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """x (..., K), weight (N, K), bias (N,) or None -> (..., N); scales (1,) are powers of two.

    ``dtype`` is that of the products and of the result; None for that of x.
    """
    return _Linear.apply(x, weight, bias, scale_x, scale_weight, scale_grad, dtype or x.dtype)
