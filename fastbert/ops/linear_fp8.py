"""Dense layer whose three products multiply 8-bit floats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .. import fp8, reference
from ..errors import InputError
from . import _define, _dispatch, _double_backward, _triton
from ._product_dtypes import product_dtype


@dataclass(frozen=True)
class Casts:
    """How a backend casts tensors to 8-bit floats. Each cast records the largest magnitude in the slot and uses the
    slot's scale.

    M' below is M rounded up to a multiple of `fp8.ALIGNMENT`, which the products need; the padding is zeros.

    Attributes:
        cast: (x (M, K), slot) -> (M, K).
        cast_weight: (weight (N, K), slot, out) -> the cast (N, K) and its transpose (K, N), written into the two
            tensors ``out`` unless that is None.
        cast_gradient: (dout (M, N), slot, sums) -> the cast (M, N), its transpose (N, M'), and with ``sums`` the sums
            of dout over its rows (N,) float32, else None.
        transpose: 8-bit (M, K) -> (K, M').
    """

    cast: Callable[[Tensor, fp8.Slot], Tensor]
    cast_weight: Callable[[Tensor, fp8.Slot, tuple[Tensor, Tensor] | None], tuple[Tensor, Tensor]]
    cast_gradient: Callable[[Tensor, fp8.Slot, bool], tuple[Tensor, Tensor, Tensor | None]]
    transpose: Callable[[Tensor], Tensor]


def linear_fp8(x: Tensor, weight: Tensor, bias: Tensor | None, site: fp8.Site) -> Tensor:
    """x' W'^T + b; backward is dx = dy' W' and dW = dy'^T x', with x' and W' in e4m3 and dy' in e5m2.

    The op that computed x may have attached x' already (`fp8.attach`); otherwise it is computed here and attached.

    Args:
        x: (..., K) floating.
        weight: (N, K), the one of ``site``; it is cast once a step.
        bias: (N,) or None.
        site: the scales; the largest magnitudes of x, W and dy are recorded in them.

    Returns:
        (..., N) in the dtype that autocast gives to products, or without autocast in that of x.

    Note:
        Only x' is kept for the backward pass, one byte per element.

    Raises:
        InputError: K or N is not a multiple of 16, or the site is another layer's.

    Ref:
        Micikevicius et al. 2022, "FP8 formats for deep learning".
    """
    if weight is not site.weight:
        raise InputError("linear_fp8 must get the weight that its site was made for, got another")
    if x.shape[-1] != weight.shape[1] or any(size % fp8.ALIGNMENT for size in weight.shape):
        raise InputError(
            f"linear_fp8 takes a weight (N, K) of multiples of {fp8.ALIGNMENT} and x (..., K), "
            f"got {tuple(weight.shape)} and {tuple(x.shape)}"
        )
    return _dispatch.call("linear_fp8", x, weight, bias, site)


def multiply(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    dtype: torch.dtype,
    bias: Tensor | None = None,
    quick: bool = False,
) -> Tensor:
    """a b^T of 8-bit floats.

    Args:
        a, b: (M, K) and (N, K).
        scale_a, scale_b: (1,) float32, by which a and b are multiplied.
        dtype: that of the result.
        bias: (N,) or None, added to the product.
        quick: lets a GPU accumulate with fewer bits; for the forward pass, whose results are rounded to 8 bits anyway.

    Returns:
        (M, N).
    """
    if not a.numel():
        return torch.zeros(a.shape[0], b.shape[0], dtype=dtype, device=a.device)
    # The library cannot add a bias to a float32 result.
    inside = None if bias is None or dtype == torch.float32 else bias.to(dtype)
    out = torch._scaled_mm(a, b.t(), scale_a, scale_b, bias=inside, out_dtype=dtype, use_fast_accum=quick)
    return out if bias is None or inside is not None else out.add_(bias)


def eight_bits(x: Tensor, rows: Tensor, slot: fp8.Slot, casts: Casts) -> Tensor:
    """The 8-bit cast (M, K) of x (..., K), whose rows are ``rows`` (M, K): the attached one, or a new one, attached."""
    data = fp8.attached(x)
    if data is None:
        data = casts.cast(rows.detach(), slot)
        if slot.scales.cold:  # the next tensor is measured too, and gets another scale
            data.fastbert_inverse = slot.inverse.clone()
        fp8.attach(x, data)
    return data


def transposed(data: Tensor, casts: Casts) -> Tensor:
    """The transpose of an 8-bit tensor, computed once and attached to it."""
    found = getattr(data, "fastbert_transposed", None)
    if found is None:
        found = data.fastbert_transposed = casts.transpose(data)
    return found


without_graph = _double_backward.without_graph(
    "gradients in 8 bits cannot be differentiated: expected a loss without second derivatives"
)


class _LinearFp8(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, data, site, casts, dtype):
        own, across = site.copies(casts.cast_weight)
        ctx.save_for_backward(data, across)
        ctx.site, ctx.casts, ctx.dtypes = site, casts, (x.dtype, weight.dtype, None if bias is None else bias.dtype)
        ctx.x_inverse = getattr(data, "fastbert_inverse", site.x.inverse)
        out = multiply(data, own, ctx.x_inverse, site.own.inverse, dtype, bias, quick=True)
        return _define.in_shape(out, (*x.shape[:-1], weight.shape[0]))

    @staticmethod
    @without_graph
    def backward(ctx, saved, dout):
        data, across = saved
        site, casts, (x_dtype, weight_dtype, bias_dtype) = ctx.site, ctx.casts, ctx.dtypes
        g, g_across, sums = casts.cast_gradient(_triton.flat(dout), site.grad, bias_dtype is not None)
        dx = dweight = None
        if ctx.needs_input_grad[0]:
            dx = multiply(g, across, site.grad.inverse, site.own.inverse, dout.dtype)
            dx = dx.to(x_dtype).view(*dout.shape[:-1], across.shape[0])
        if ctx.needs_input_grad[1]:
            x_across = transposed(data, casts)
            dweight = multiply(g_across, x_across, site.grad.inverse, ctx.x_inverse, torch.float32).to(weight_dtype)
        return dx, dweight, None if sums is None else sums.to(bias_dtype), None, None, None, None


def apply(x: Tensor, weight: Tensor, bias: Tensor | None, site: fp8.Site, casts: Casts) -> Tensor:
    """`linear_fp8` by one backend's casts and torch's scaled product."""
    data = eight_bits(x, _triton.flat(x), site.x, casts)
    return _LinearFp8.apply(x, weight, bias, data, site, casts, product_dtype(x))


@_dispatch.register("linear_fp8", "reference")
def _reference(x: Tensor, weight: Tensor, bias: Tensor | None, site: fp8.Site) -> Tensor:
    for tensor, slot in ((x, site.x), (weight, site.own)):
        slot.note(tensor.detach())
    out = reference.linear_fp8(x, weight, bias, site.x.scale, site.own.scale, site.grad.scale, product_dtype(x))
    if out.requires_grad:
        out.register_hook(site.grad.note)  # before the gradient is rounded
    return out
