"""Varlen attention by Triton. Kept for backward: q, k, v, the output and one number per token and head."""

from __future__ import annotations

import torch
from torch import Tensor

from ..rng import Dropout
from . import _dispatch, _gradients, _triton
from ._double_backward import differentiable


def _readable(x: Tensor) -> Tensor:
    """x (T, nheads, head_dim) as the kernels can read it: with contiguous rows, and with heads so close that the number
    of a head times their stride has 32 bits."""
    return _triton.whole_rows(x) if (x.shape[1] - 1) * x.stride(1) < 2**31 else x.contiguous()


def _forward(q, k, v, cu_seqlens, max_seqlen, softmax_scale, causal, rng, site, threshold, scale):
    from ..triton_kernels import attention

    q, k, v = map(_readable, (q, k, v))
    return attention.attention_forward(
        q, k, v, cu_seqlens, max_seqlen, softmax_scale, causal, rng, site, threshold, scale
    )


def _forward_fake(q, k, v, cu_seqlens, max_seqlen, softmax_scale, causal, rng, site, threshold, scale):
    return q.new_empty(q.shape), q.new_empty(q.shape[1], q.shape[0], dtype=torch.float32)


def _backward(dout, q, k, v, out, lse, cu_seqlens, max_seqlen, softmax_scale, causal, rng, site, threshold, scale):
    from ..triton_kernels import attention_backward

    dout, q, k, v = map(_readable, (dout, q, k, v))
    return attention_backward.attention_backward(
        dout, q, k, v, out, lse, cu_seqlens, max_seqlen, softmax_scale, causal, rng, site, threshold, scale
    )


def _backward_fake(dout, q, k, v, *_):
    return tuple(x.new_empty(x.shape) for x in (q, k, v))


def _setup_context(ctx, inputs, output) -> None:
    q, k, v, cu_seqlens, *ctx.sizes, rng, site, threshold, scale = inputs
    ctx.random = site, threshold, scale
    out, lse = output
    ctx.mark_non_differentiable(lse)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, k, v, out, lse, cu_seqlens, rng)


def _gradient_again(ctx, saved, dout: Tensor, _dlse):
    q, k, v, _out, _lse, cu_seqlens, rng = saved
    (max_seqlen, softmax_scale, causal), (site, threshold, _) = ctx.sizes, ctx.random
    options = {"softmax_scale": softmax_scale, "causal": causal, "dropout": _triton.dropout_of(rng, site, threshold)}
    return *_gradients.attention(dout, q, k, v, None, cu_seqlens, max_seqlen, **options)[:3], *(None,) * 8


@differentiable(_gradient_again)
def _gradient(ctx, saved, dout: Tensor, _dlse):
    *tensors, cu_seqlens, rng = saved
    return *_attention_backward(dout, *tensors, cu_seqlens, *ctx.sizes, rng, *ctx.random), *(None,) * 8


_SIZES = f"Tensor cu_seqlens, SymInt max_seqlen, float softmax_scale, bool causal, {_triton.RANDOM_SCHEMA}"
_attention_backward = _triton.define(
    f"triton_attention_backward(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, {_SIZES}) -> "
    "(Tensor, Tensor, Tensor)",
    _backward,
    _backward_fake,
)
_attention = _triton.define(
    f"triton_attention(Tensor q, Tensor k, Tensor v, {_SIZES}) -> (Tensor, Tensor)",
    _forward,
    _forward_fake,
    backward=_gradient,
    setup_context=_setup_context,
)


NO_BIAS = "the Triton attention adds no bias to its scores"


def why_not_sizes(head_dim: int, cu_seqlens: Tensor, device: torch.device) -> str | None:
    """None if the kernels take heads of this size and these bounds with tensors on this device, else why not."""
    if head_dim > 128:
        return f"the Triton attention takes heads of at most 128 numbers, got {head_dim}"
    if cu_seqlens.dtype != torch.int32 or cu_seqlens.device != device:
        got = f"{cu_seqlens.dtype} on {cu_seqlens.device}"
        return f"the Triton attention takes int32 cu_seqlens on the device of q, got {got}"
    return None


def _accepts(
    q, k, v, cu_seqlens, max_seqlen, *, softmax_scale=None, dropout=None, causal=False, bias=None
) -> str | None:
    if bias is not None:
        return NO_BIAS
    return why_not_sizes(q.shape[-1], cu_seqlens, q.device) or _triton.why_not(q, k, v)


@_dispatch.register("attention", "triton", available=_triton.why_missing, accepts=_accepts)
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    *,
    softmax_scale: float | None = None,
    dropout: Dropout | None = None,
    causal: bool = False,
    bias: None = None,
) -> Tensor:
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    random = _triton.random_arguments(dropout, q.device)
    return _attention(q, k, v, cu_seqlens, max_seqlen, scale, causal, *random)[0]
