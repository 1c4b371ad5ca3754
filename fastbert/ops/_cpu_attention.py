"""Attention of packed sequences by the CPU kernels: scores stay on chip, dropout's bits are drawn again in backward.

Kept for backward, beside q, k, v and the output: a float32 a token and head, the logarithm of its sum of exponentials.
q, k and v may be views of one fused (T, 3 nheads head_dim) matrix, which is then read in place.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .. import _native
from ..errors import InputError
from . import _cpu, _dispatch


def _rows(x: Tensor) -> Tensor:
    """x (T, nheads, head_dim) with the heads of a token side by side; tokens may lie apart."""
    _, nheads, head_dim = x.shape
    adjacent = (head_dim == 1 or x.stride(2) == 1) and (nheads == 1 or x.stride(1) == head_dim)
    return x if adjacent else x.contiguous()


def _arguments(q, k, v, out, lse, cu_seqlens, max_seqlen, softmax_scale, causal, dropout):
    """What forward and backward have in common, for the kernels; the tensors must outlive it."""
    num_tokens, nheads, head_dim = q.shape
    arguments = _native.extension().AttentionArgs(
        dtype=_cpu.code(q),
        qkv=(q.data_ptr(), k.data_ptr(), v.data_ptr()),
        strides=(q.stride(0), k.stride(0), v.stride(0)),
        out=out.data_ptr(),
        out_stride=out.stride(0),
        lse=_cpu.pointer(lse),
        cu_seqlens=cu_seqlens.data_ptr(),
        batch_size=cu_seqlens.numel() - 1,
        max_seqlen=max_seqlen,
        nheads=nheads,
        head_dim=head_dim,
        softmax_scale=softmax_scale,
        causal=causal,
        dropout=_cpu.native_dropout(*dropout),
    )
    if not arguments.bounds_fit(num_tokens):
        raise InputError(f"cu_seqlens must ascend from 0 to the {num_tokens} tokens of q, got {cu_seqlens.tolist()}")
    return arguments


def _bounds(cu_seqlens: Tensor) -> Tensor:
    return cu_seqlens.to(torch.int32).contiguous()


def _forward(q, k, v, cu_seqlens, max_seqlen, softmax_scale, causal, threshold, seed, offset, site, rng, save):
    q, k, v, bounds = _rows(q), _rows(k), _rows(v), _bounds(cu_seqlens)
    num_tokens, nheads, _ = q.shape
    out = _cpu.buffer(q.shape, q.dtype)
    lse = _cpu.buffer((nheads, num_tokens) if save else 0)
    dropout = (threshold, seed, offset, site, rng)
    arguments = _arguments(q, k, v, out, lse if save else None, bounds, max_seqlen, softmax_scale, causal, dropout)
    _native.extension().attention_forward(arguments)
    return out, lse


def _forward_fake(q, k, v, cu_seqlens, max_seqlen, softmax_scale, causal, threshold, seed, offset, site, rng, save):
    num_tokens, nheads, _ = q.shape
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    return out, q.new_empty((nheads, num_tokens) if save else (0,), dtype=torch.float32)


def _backward(
    dout, q, k, v, out, lse, cu_seqlens, max_seqlen, softmax_scale, causal, threshold, seed, offset, site, rng
):
    dout, q, k, v, out, bounds = *(_rows(x) for x in (dout, q, k, v, out)), _bounds(cu_seqlens)
    lse = lse.contiguous()
    gradients = [_cpu.buffer(q.shape, q.dtype) for _ in range(3)]
    dropout = (threshold, seed, offset, site, rng)
    arguments = _arguments(q, k, v, out, lse, bounds, max_seqlen, softmax_scale, causal, dropout)
    _native.extension().attention_backward(
        arguments,
        dout.data_ptr(),
        dout.stride(0),
        [x.data_ptr() for x in gradients],
        [x.stride(0) for x in gradients],
    )
    return tuple(gradients)


def _backward_fake(
    dout, q, k, v, out, lse, cu_seqlens, max_seqlen, softmax_scale, causal, threshold, seed, offset, site, rng
):
    return tuple(torch.empty_like(q, memory_format=torch.contiguous_format) for _ in range(3))


def _setup_context(ctx, inputs, output) -> None:
    q, k, v, cu_seqlens, *options, _save = inputs
    out, lse = output
    ctx.mark_non_differentiable(lse)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, k, v, out, lse, cu_seqlens)
    ctx.options = options


def _gradient(ctx, dout: Tensor, _dlse):
    return *_attention_backward(dout, *ctx.saved_tensors, *ctx.options), *(None,) * 10


def _too_large(q: Tensor) -> str | None:
    largest = _native.extension().ATTENTION_MAX_HEAD_DIM
    if q.shape[-1] <= largest:
        return None
    return f"the CPU kernels take heads of at most {largest}, got {q.shape[-1]}"


_OPTIONS = f"Tensor cu_seqlens, SymInt max_seqlen, float softmax_scale, bool causal, {_cpu.DROPOUT_SCHEMA}"
_INPUTS = "q: activation (T, N, D); k: activation (T, N, D); v: activation (T, N, D); cu_seqlens: index (B)"


def _check_heads(q: Tensor, *_) -> None:
    if (reason := _too_large(q)) is not None:
        raise InputError(reason)


_attention_backward = _cpu.define(
    "attention_backward(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, "
    f"{_OPTIONS}) -> (Tensor, Tensor, Tensor)",
    _backward,
    _backward_fake,
    tensors=f"{_INPUTS}; dout: activation (T, N, D); out: activation (T, N, D); lse: float32 (N, T); "
    f"{_cpu.DROPOUT_TENSORS}",
    rest=_check_heads,
)
_attention = _cpu.define(
    f"attention(Tensor q, Tensor k, Tensor v, {_OPTIONS}, bool save) -> (Tensor, Tensor)",
    _forward,
    _forward_fake,
    backward=_gradient,
    setup_context=_setup_context,
    tensors=f"{_INPUTS}; {_cpu.DROPOUT_TENSORS}",
    rest=_check_heads,
)


def _accepts(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, max_seqlen: int, **_) -> str | None:
    return _too_large(q) or _cpu.why_not(q, k, v)


@_dispatch.register("attention", "cpu", available=_native.why_missing, accepts=_accepts)
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    *,
    softmax_scale: float | None = None,
    dropout=None,
    causal: bool = False,
) -> Tensor:
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    save = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    options = (max_seqlen, scale, causal, *_cpu.dropout_arguments(dropout), save)
    return _attention(q, k, v, cu_seqlens, *options)[0]
