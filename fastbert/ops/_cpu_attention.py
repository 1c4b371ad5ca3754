"""Attention of packed sequences by the CPU kernels: scores stay in cache, dropout is drawn again in the backward pass.

Kept for backward besides q, k, v and the output: lse, a float32 per token and head, the logarithm of the softmax's sum.
q, k and v may be views of one fused (T, 3 nheads head_dim) matrix, which is then read in place.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import _native
from ..errors import InputError
from . import _cpu, _define, _dispatch, _dropout_schema, _gradients
from ._cpu_dropout import keep_mask
from ._double_backward import differentiable
from .attention import check_bias, covered_tokens


def _rows(x: Tensor) -> Tensor:
    """x (T, nheads, head_dim), copied unless each token's row is contiguous; the stride between tokens is free."""
    _, nheads, head_dim = x.shape
    adjacent = (head_dim == 1 or x.stride(2) == 1) and (nheads == 1 or x.stride(1) == head_dim)
    return x if adjacent else x.contiguous()


# How many elements past the end of a row of the bias a kernel may read (csrc/include/attention.h).
_BEHIND_A_ROW = 15


def bias_rows(bias: Tensor | None, cu_seqlens: Tensor) -> Tensor | None:
    """A bias (nheads, 2R-1) as the kernels read it: float32, with padding after each row; None for None.

    Args:
        cu_seqlens: (B+1,) int32, contiguous.

    Raises:
        InputError: the bias is too short for one of the sequences.
    """
    if bias is None:
        return None
    longest = _native.extension().longest_sequence(cu_seqlens.data_ptr(), cu_seqlens.numel() - 1)
    check_bias(bias, bias.shape[0], longest)  # not max_seqlen: the caller's value may be wrong
    return F.pad(bias.detach().to(torch.float32), (0, _BEHIND_A_ROW)).contiguous()


def native_bias(rows: Tensor | None):
    """The kernels' RelativeBias object for the result of `bias_rows`, which must outlive it."""
    relative = _native.extension().RelativeBias
    return relative(0, 0, 0) if rows is None else relative(rows.data_ptr(), rows.stride(0), _middle(rows))


def _middle(rows: Tensor) -> int:
    return (rows.shape[1] - _BEHIND_A_ROW) // 2


def _arguments(q, k, v, out, lse, cu_seqlens, max_seqlen, softmax_scale, causal, dropout, rows):
    """The arguments that forward and backward share, for the kernels; the tensors must outlive them. None if there are
    tokens behind the last sequence, of which the kernels know nothing."""
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
        bias=native_bias(rows),
    )
    if arguments.bounds_fit(num_tokens):
        return arguments
    if covered_tokens(cu_seqlens, num_tokens) < num_tokens:
        return None
    raise InputError(f"cu_seqlens must ascend from 0 to the {num_tokens} tokens of q, got {cu_seqlens.tolist()}")


def _with_zeros(x: Tensor, num_tokens: int, dim: int = 0) -> Tensor:
    """x with zeros for the tokens behind the last sequence."""
    return F.pad(x, (0, 0) * (x.dim() - 1 - dim) + (0, num_tokens - x.shape[dim]))


def _bounds(cu_seqlens: Tensor) -> Tensor:
    return cu_seqlens.to(torch.int32).contiguous()


def _forward(q, k, v, cu_seqlens, max_seqlen, softmax_scale, causal, threshold, seed, offset, site, rng, bias, save):
    q, k, v, bounds = _rows(q), _rows(k), _rows(v), _bounds(cu_seqlens)
    rows = bias_rows(bias, bounds)
    num_tokens, nheads, _ = q.shape
    out = _cpu.buffer(q.shape, q.dtype)
    lse = _cpu.buffer((nheads, num_tokens) if save else 0)
    dropout = (threshold, seed, offset, site, rng)
    lse_kept = lse if save else None
    arguments = _arguments(q, k, v, out, lse_kept, bounds, max_seqlen, softmax_scale, causal, dropout, rows)
    if arguments is None:
        q, k, v = (x[: int(bounds[-1])] for x in (q, k, v))
        out, lse = _forward(q, k, v, bounds, max_seqlen, softmax_scale, causal, *dropout, bias, save)
        return _with_zeros(out, num_tokens), _with_zeros(lse, num_tokens, 1) if save else lse
    _native.extension().attention_forward(arguments)
    return out, lse


def _forward_fake(
    q, k, v, cu_seqlens, max_seqlen, softmax_scale, causal, threshold, seed, offset, site, rng, bias, save
):
    num_tokens, nheads, _ = q.shape
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    return out, q.new_empty((nheads, num_tokens) if save else (0,), dtype=torch.float32)


def _backward(
    dout, q, k, v, out, lse, cu_seqlens, max_seqlen, softmax_scale, causal, threshold, seed, offset, site, rng, bias,
    learns_bias
):  # fmt: skip
    dout, q, k, v, out, bounds = *(_rows(x) for x in (dout, q, k, v, out)), _bounds(cu_seqlens)
    lse, rows = lse.contiguous(), bias_rows(bias, bounds)
    gradients = [_cpu.buffer(q.shape, q.dtype) for _ in range(3)]
    # Threads take the sequences in any order, so each sequence has its own sum; these are then added in a fixed order.
    sums = _cpu.buffer((bounds.numel() - 1, *rows.shape)).zero_() if learns_bias else None
    dropout = (threshold, seed, offset, site, rng)
    arguments = _arguments(q, k, v, out, lse, bounds, max_seqlen, softmax_scale, causal, dropout, rows)
    if arguments is None:
        num_tokens, end = len(q), int(bounds[-1])
        given = (*(x[:end] for x in (dout, q, k, v, out)), lse[:, :end], bounds)
        *found, dbias = _backward(*given, max_seqlen, softmax_scale, causal, *dropout, bias, learns_bias)
        return *(_with_zeros(x, num_tokens) for x in found), dbias
    _native.extension().attention_backward(
        arguments,
        dout.data_ptr(),
        dout.stride(0),
        [x.data_ptr() for x in gradients],
        [x.stride(0) for x in gradients],
        _cpu.pointer(sums),
    )
    dbias = _cpu.buffer(0) if sums is None else sums.sum(0)[:, : bias.shape[1]].to(bias.dtype).contiguous()
    return *gradients, dbias


def _backward_fake(dout, q, k, v, out, lse, *options):
    bias, learns_bias = options[-2:]
    gradients = (torch.empty_like(q, memory_format=torch.contiguous_format) for _ in range(3))
    return *gradients, bias.new_empty(bias.shape) if learns_bias else q.new_empty(0, dtype=torch.float32)


def _setup_context(ctx, inputs, output) -> None:
    q, k, v, cu_seqlens, *options, bias, _save = inputs
    out, lse = output
    ctx.mark_non_differentiable(lse)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, k, v, out, lse, cu_seqlens, bias)
    ctx.options = options


def _gradient_again(ctx, saved, dout: Tensor, _dlse):
    q, k, v, _out, _lse, cu_seqlens, bias = saved
    max_seqlen, softmax_scale, causal, *dropout = ctx.options
    options = {"softmax_scale": softmax_scale, "causal": causal, "dropout": _dropout_schema.dropout_of(*dropout)}
    gradients = _gradients.attention(dout, q, k, v, bias, cu_seqlens, max_seqlen, keep_mask=keep_mask, **options)
    return *gradients[:3], *(None,) * 9, gradients[3], None


@differentiable(_gradient_again)
def _gradient(ctx, saved, dout: Tensor, _dlse):
    *tensors, bias = saved
    learns_bias = ctx.needs_input_grad[-2]
    dq, dk, dv, dbias = _attention_backward(dout, *tensors, *ctx.options, bias, learns_bias)
    return dq, dk, dv, *(None,) * 9, dbias if learns_bias else None, None


def why_not_head_dim(head_dim: int) -> str | None:
    """None if the kernels can take heads of this size, whose rows lie in a scratch of fixed size, else why not."""
    largest = _native.extension().ATTENTION_MAX_HEAD_DIM
    return None if head_dim <= largest else f"the CPU kernels take heads of at most {largest}, got {head_dim}"


_OPTIONS = (
    f"Tensor cu_seqlens, SymInt max_seqlen, float softmax_scale, bool causal, {_dropout_schema.SCHEMA}, Tensor? bias"
)
_INPUTS = "q: activation (T, N, D); k: activation (T, N, D); v: activation (T, N, D); cu_seqlens: index (B); "
_INPUTS += f"{_dropout_schema.TENSORS}; bias: parameter (N, W)"


def _check_heads(q: Tensor, *_) -> None:
    if reason := why_not_head_dim(q.shape[-1]):
        raise InputError(reason)


_attention_backward = _define.define(
    "attention_backward(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, "
    f"{_OPTIONS}, bool learns_bias) -> (Tensor, Tensor, Tensor, Tensor)",
    _backward,
    _backward_fake,
    tensors=f"{_INPUTS}; dout: activation (T, N, D); out: activation (T, N, D); lse: float32 (N, T)",
    rest=_check_heads,
)
_attention = _define.define(
    f"attention(Tensor q, Tensor k, Tensor v, {_OPTIONS}, bool save) -> (Tensor, Tensor)",
    _forward,
    _forward_fake,
    backward=_gradient,
    setup_context=_setup_context,
    tensors=_INPUTS,
    rest=_check_heads,
)


def _accepts(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, max_seqlen: int, *, bias: Tensor | None = None, **_
) -> str | None:
    return why_not_head_dim(q.shape[-1]) or _cpu.why_not_device(cu_seqlens) or _cpu.why_not(q, k, v, parameters=(bias,))


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
    bias: Tensor | None = None,
) -> Tensor:
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    save = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (q, k, v, bias))
    options = (max_seqlen, scale, causal, *_dropout_schema.arguments(dropout), bias, save)
    return _attention(q, k, v, cu_seqlens, *options)[0]
