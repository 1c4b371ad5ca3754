"""Dense layers in the Triton backend: torch's products (cuBLAS on a GPU), of weights padded to fast sizes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import reference
from . import _dispatch, _triton, _watchers
from ._double_backward import differentiable_by
from ._needed_gradients import needed_gradients
from ._product_dtypes import product_dtype
from .linear import second_derivatives

# Fast products need rows of a multiple of 16 bytes, and Triton's loads are best with multiples of 16 elements. BERT's
# vocabulary of 30,522 is neither. From this many features on, copying the weight costs little compared with a product
# that has this many rows.
_UNIT, _LARGE = 16, 1024


def filled_width(x: Tensor) -> int | None:
    """The number of features including padding, if x is a result of `linear` with padded features; else None."""
    width = x.stride(0) if x.dim() == 2 and x.stride(1) == 1 else 0
    return width if 0 < width - x.shape[1] < _UNIT and not width % _UNIT and x.element_size() == 2 else None


def without_filling(whole: Tensor, features: int) -> Tensor:
    """The first features of a gradient (M, `filled_width`) whose padding is zeros. The whole gradient stays attached to
    the result, so that the backward pass of `linear` can use it without padding a copy."""
    given = whole[:, :features]
    given.fastbert_whole = whole  # they share memory: an in-place change of the gradient changes both
    return given


# On a GPU, torch 2.8 and later can store the float32 sums of a product of 16-bit matrices without rounding them.
_STORES_SUMS = torch.version.cuda is not None and "dtype" in torch.ops.aten.mm.overloads()


def weight_gradient(dout: Tensor, x: Tensor, dtype: torch.dtype) -> Tensor:
    """dout^T x, the gradient of a weight of this dtype: (M, N) and (M, K) -> (N, K).

    For a float32 weight the product is stored in float32 at once if torch can: rounded to 16 bits first, it would have
    to be read and written again. Otherwise it has the dtype of x.
    """
    if _STORES_SUMS and dtype == torch.float32 and x.dtype != dtype and x.is_cuda:
        return torch.mm(dout.t(), x, out_dtype=dtype)
    return torch.mm(dout.t(), x)


def _second(_ctx, saved, grads, upstream, wants) -> tuple[Tensor | None, ...]:
    _rows, _wide, x, weight = saved
    of_dout, *others = second_derivatives(*grads, x, weight, upstream, [wants[0], *wants[3:]])
    return of_dout, None, None, *others


class _Filled(torch.autograd.Function):
    """A dense layer computed with output features padded by zeros; the result is the memory of the first features."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        features, dtype = weight.shape[0], product_dtype(x)
        rows = x.reshape(-1, x.shape[-1]).to(dtype)

        def filled(parameter: Tensor) -> Tensor:
            made = parameter.new_empty(features + -features % _UNIT, *parameter.shape[1:], dtype=dtype)
            made[:features].copy_(parameter)
            made[features:].zero_()
            return made

        wide = filled(weight)
        ctx.save_for_backward(rows, wide, x, weight)
        ctx.like = x.shape, x.dtype, weight.dtype, None if bias is None else bias.dtype
        out = F.linear(rows, wide, None if bias is None else filled(bias))
        out = out.view(*x.shape[:-1], len(wide))[..., :features]
        if _watchers.has_dispatch_mode():  # which may not know what memory is set to
            return out
        # Not the view itself: autograd would forbid the caller to write to the result in place.
        return out.new_empty(0).set_(out.untyped_storage(), out.storage_offset(), out.shape, out.stride())

    @staticmethod
    @differentiable_by(_second)
    def backward(ctx, saved: tuple[Tensor, ...], dout: Tensor):
        rows, wide, _x, _weight = saved
        shape, dtype, of_weight, of_bias = ctx.like
        needs_x, needs_weight, needs_bias = needed_gradients(ctx, ctx.needs_input_grad)
        features, whole = dout.shape[-1], getattr(dout, "fastbert_whole", None)
        dout = dout.reshape(-1, features)
        if whole is None:
            whole = F.pad(dout, (0, len(wide) - features))
        dx = torch.mm(whole, wide).view(shape).to(dtype) if needs_x else None
        dweight = weight_gradient(whole, rows, of_weight)[:features].to(of_weight) if needs_weight else None
        dbias = None
        if needs_bias:
            from ..triton_kernels.linear import sum_over_rows

            dbias = sum_over_rows(whole.contiguous())[:features].to(of_bias)
        return dx, dweight, dbias


def _accepts(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> str | None:
    return _triton.why_not(x, parameters=(weight, bias))


@_dispatch.register("linear", "triton", available=_triton.why_missing, accepts=_accepts)
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    features, dtype = weight.shape[0], product_dtype(x)
    # In torch.compile, a condition on the number of rows would need more graphs, and inductor pads by itself.
    if not features % _UNIT or features < _LARGE or dtype == torch.float32 or torch.compiler.is_compiling():
        return reference.linear(x, weight, bias)
    if x.shape[:-1].numel() < _LARGE:
        return reference.linear(x, weight, bias)
    return _Filled.apply(x, weight, bias)
