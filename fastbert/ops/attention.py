"""Attention of packed sequences."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import reference
from ..errors import InputError
from ..packing import checked_bounds
from ..rng import Dropout
from ..transforms import is_exported, is_transformed
from . import _dispatch, _invariant


def check_bias(bias: Tensor | None, nheads: int, max_seqlen: int) -> None:
    """Raises InputError for a bias that `attention` cannot use with this many heads and sequences of this length."""
    if bias is None:
        return
    if bias.dim() != 2 or bias.shape[0] != nheads or bias.shape[1] % 2 == 0 or bias.shape[1] < 2 * max_seqlen - 1:
        raise InputError(
            f"bias must be ({nheads}, 2R-1) with R of at least {max_seqlen}, the longest sequence, "
            f"got {tuple(bias.shape)}"
        )


def covered_tokens(cu_seqlens: Tensor, num_tokens: int) -> int:
    """How many of the tokens are those of sequences: fewer than there are where a `RoomPacking` has room left, and all
    of them where the bounds are wrong, as whoever checks them will find. Reads bounds on the CPU."""
    bounds = cu_seqlens.tolist()
    fits = bounds and bounds[0] == 0 and bounds[-1] < num_tokens and bounds == sorted(bounds)
    return bounds[-1] if fits else num_tokens


@_dispatch.register("attention", "reference")
def _reference(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, max_seqlen: int, **options) -> Tensor:
    if is_exported() or not (torch.compiler.is_compiling() or is_transformed()):
        is_read = cu_seqlens.device.type == "cpu" and not is_exported()
        checked_bounds(cu_seqlens, covered_tokens(cu_seqlens, len(q)) if is_read else len(q), max_seqlen)
    if not _invariant.active():
        return reference.attention(q, k, v, cu_seqlens, max_seqlen, **options)
    if options.get("dropout") is not None:
        _invariant.refuse("attention was asked to drop probabilities; expected a model in eval()")
    return _invariant.by_sequences(reference.attention, q, k, v, cu_seqlens, **options)


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
    bias: Tensor | None = None,
) -> Tensor:
    """dropout(softmax(scale * Q K^T + bias)) V within each sequence and head.

    Args:
        q, k, v: (T, nheads, head_dim) floating, sequences laid end to end.
        cu_seqlens: (B+1,) int32, the sequences' bounds; empty sequences are allowed, and tokens behind the last one,
            as a `RoomPacking` has them.
        max_seqlen: the length of the longest sequence, or more. Kernels on a GPU do not read the bounds to check it:
            what lies beyond is then undefined.
        softmax_scale: None for head_dim ** -0.5.
        dropout: its rate and place in the random stream (`DropoutKey.site`), or None; row = token * nheads + head,
            column = the key's index within the sequence.
        causal: whether a token attends only to itself and to earlier tokens.
        bias: (nheads, 2R-1) floating with R >= max_seqlen, or None: column R - 1 + j - i is added to the scaled score
            of query i and key j. The Triton kernels take none.

    Returns:
        (T, nheads, head_dim), dtype of q; softmax in float32 (float64 for float64). Zeros for tokens behind the last
        sequence, whose gradients are zeros too.

    Raises:
        InputError: shapes do not fit, or on a CPU cu_seqlens that do not ascend from 0 to at most T.

    Ref:
        Vaswani et al. 2017, equation 1; the bias: Raffel et al. 2020, section 2.1.
    """
    if q.dim() != 3 or q.shape != k.shape or q.shape != v.shape:
        shapes = [tuple(x.shape) for x in (q, k, v)]
        raise InputError(f"q, k and v must all be (T, nheads, head_dim), got {shapes}")
    if cu_seqlens.dim() != 1 or cu_seqlens.numel() < 1:
        raise InputError(f"cu_seqlens must be (B+1,), got {tuple(cu_seqlens.shape)}")
    check_bias(bias, q.shape[1], max_seqlen)
    return _dispatch.call(
        "attention",
        q,
        k,
        v,
        cu_seqlens,
        max_seqlen,
        softmax_scale=softmax_scale,
        dropout=dropout,
        causal=causal,
        bias=bias,
    )
