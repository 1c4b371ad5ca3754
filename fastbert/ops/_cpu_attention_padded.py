"""Attention of a rectangular batch on the CPU: torch's fused attention if only the output is needed, without dropout.

Otherwise the reference, with its dropout masks drawn by our kernel.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import _native, reference
from ..rng import Dropout
from . import _cpu, _dispatch
from ._cpu_dropout import keep_mask
from ._double_backward import differentiable
from ._gradients import gradients_of
from ._product_dtypes import product_dtype


def _gradient_again(ctx, saved, dout: Tensor) -> tuple[Tensor | None, ...]:
    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        return reference.attention_padded(q, k, v, mask, softmax_scale=ctx.scale)[0]

    return *gradients_of(attend, saved, dout), None


def _has_rows_at_the_end(mask: Tensor | None) -> bool:
    """Whether there is a query all of whose keys have very negative numbers that are not -inf, as transformers' masks
    have for the pads of a batch. The gradient of torch's fused attention is wrong there: it keeps the logarithm of a
    row's sum, and beside -3e38 nothing is left of that."""
    if mask is None or not mask.numel():
        return False
    largest = mask.detach().amax(-1)
    return bool(((largest < -1e3) & largest.isfinite()).any())


class _Recomputed(torch.autograd.Function):
    """torch's fused attention, whose gradient on a CPU is an operator that has none itself.

    The forward pass is computed again for the gradient, which takes what only torch's own node could save: this path is
    for seldom masks."""

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float | None) -> Tensor:
        ctx.save_for_backward(q, k, v, mask)
        ctx.scale = scale
        return F.scaled_dot_product_attention(q, k, v, mask, scale=scale)

    @staticmethod
    @differentiable(_gradient_again)
    def backward(ctx, saved: tuple[Tensor | None, ...], dout: Tensor):
        wanted = ctx.needs_input_grad[:4]
        given = [None if x is None else x.detach().requires_grad_(want) for x, want in zip(saved, wanted, strict=True)]
        with torch.enable_grad():
            if _has_rows_at_the_end(given[3]):
                out, _ = reference.attention_padded(*given, softmax_scale=ctx.scale)
            else:
                out = F.scaled_dot_product_attention(*given, scale=ctx.scale)
        inputs = [x for x in given if x is not None and x.requires_grad]
        found = iter(torch.autograd.grad(out, inputs, dout, allow_unused=True))  # without rows, a mask is
        return *(next(found) if want else None for want in wanted), None


def _accepts(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **_) -> str | None:
    return _cpu.why_not(q, k, v)


@_dispatch.register("attention_padded", "cpu", available=_native.why_missing, accepts=_accepts)
def attention_padded(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    *,
    softmax_scale: float | None = None,
    dropout: Dropout | None = None,
    probabilities: bool = True,
) -> tuple[Tensor, Tensor | None]:
    if not probabilities and dropout is None:
        # Since torch 2.5, rows without keys give 0 here too, and a mask that requires a gradient gets it.
        if torch.compiler.is_compiling():
            # A compiler cannot ask what is in the mask, of which the gradient may be wrong.
            if not (torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (q, k, v, mask))):
                return F.scaled_dot_product_attention(q, k, v, mask, scale=softmax_scale), None
        elif not ((dtype := product_dtype(q)) == torch.float16 != q.dtype and _has_rows_at_the_end(mask)):
            tensors = (None if x is None else x.to(dtype) for x in (q, k, v, mask))
            return _Recomputed.apply(*tensors, softmax_scale), None
        # In float16, which autocast gives to products, such rows would be rows of -inf.
    options = {"softmax_scale": softmax_scale, "dropout": dropout, "keep_mask": keep_mask}
    out, probs = reference.attention_padded(q, k, v, mask, **options)
    return out, probs if probabilities else None
