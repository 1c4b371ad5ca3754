"""Varlen attention with dropout (Vaswani et al. 2017, eq. 1; tiling after Dao et al. 2022), forward.

O = dropout(softmax(scale Q K^T)) V within each sequence and head. Q, K and V are read once a block of queries and O is
written once; no S x S matrix is in memory. The softmax is in fp32 and its log sum exp is kept for backward. Where one
block of keys is the whole sequence nothing is rescaled.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import attention_dropout
from .attention_dropout import load_keep
from .common import add_product, cdiv, empty_rng, exp2, keep_bits, kernel, next_power_of_2, own_block, quotient, whole

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)


def forward_settings(head_dim: int, max_seqlen: int, itemsize: int) -> dict:
    """Tile sizes of the forward kernels. Those for heads of 64 in 16 bits are the best on an H200 at 128 and 512 tokens
    (benchmarks/gpu/settings.py), others were chosen by registers and shared memory. Sequences of at most BLOCK_N tokens
    take the kernel of one block.
    """
    if itemsize == 4:
        # A thread holds its share of all operands; of 32 keys with wide heads 456 bytes of it do not fit.
        return {"BLOCK_M": 32, "BLOCK_N": 16 if head_dim > 64 else 32, "num_warps": 4, "num_stages": 1}
    if max_seqlen <= 128:
        # With one block of keys nothing is loaded ahead within a program: other programs must fill its waits, and of
        # four warps several fit on a multiprocessor.
        return {"BLOCK_M": 64, "BLOCK_N": 64 if max_seqlen <= 64 else 128, "num_warps": 4, "num_stages": 1}
    return {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 3 if head_dim <= 64 else 2}


@triton.jit
def load_rows(ptr, rows, length, stride, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr):
    """(rows, BLOCK_D) of a (length, HEAD_DIM) matrix whose rows are `stride` apart; zero outside."""
    columns = tl.arange(0, BLOCK_D)
    inside = (rows[:, None] < length) & (columns[None, :] < HEAD_DIM)
    return tl.load(ptr + rows[:, None].to(tl.int64) * stride + columns[None, :], mask=inside, other=0.0)


@triton.jit
def store_rows(ptr, rows, length, stride, values, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr):
    columns = tl.arange(0, BLOCK_D)
    inside = (rows[:, None] < length) & (columns[None, :] < HEAD_DIM)
    at = ptr + rows[:, None].to(tl.int64) * stride + columns[None, :]
    tl.store(at, values.to(ptr.dtype.element_ty), mask=inside)


@triton.jit
def _scores(q, k, rows, columns, length, softmax_scale, CAUSAL: tl.constexpr, PRECISION: tl.constexpr):
    """Of one tile, to base 2. Rows past the end have some that nobody uses."""
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * (softmax_scale * LOG2E)
    if CAUSAL:  # of a row that is stored all keys past the end are later ones
        return tl.where(columns[None, :] <= rows[:, None], scores, float("-inf"))
    else:  # an addition is part of the multiplication before it
        return scores + tl.where(columns < length, 0.0, float("-inf"))[None, :]


@kernel
def _attention_fwd_kernel(
    q_ptr,  # (T, nheads, HEAD_DIM), as k and v
    k_ptr,
    v_ptr,
    out_ptr,  # (T, nheads, HEAD_DIM)
    lse_ptr,  # (nheads, T) fp32
    cu_seqlens_ptr,  # (B + 1) int32
    bits_ptr,  # (nheads, T, 128 bit_blocks) bits of the dropout, in words
    stride_qt,
    stride_qh,
    stride_kt,
    stride_kh,
    stride_vt,
    stride_vh,
    stride_ot,
    stride_oh,
    bit_blocks,
    T,
    softmax_scale,
    keep_scale,
    CAUSAL: tl.constexpr,
    HAS_DROPOUT: tl.constexpr,
    PRECISION: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    head, start, length, first_row = own_block(cu_seqlens_ptr, BLOCK_M)
    if first_row >= length:
        return
    rows = first_row + tl.arange(0, BLOCK_M)
    q = load_rows(q_ptr + start * stride_qt + head * stride_qh, rows, length, stride_qt, HEAD_DIM, BLOCK_D)
    k_ptr += start * stride_kt + head * stride_kh
    v_ptr += start * stride_vt + head * stride_vh
    if HAS_DROPOUT:
        bits_rows = head.to(tl.int64) * T + start + rows
    m = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    last = length
    if CAUSAL:
        last = tl.minimum(length, first_row + BLOCK_M)
    for first in range(0, last, BLOCK_N):
        columns = first + tl.arange(0, BLOCK_N)
        k = load_rows(k_ptr, columns, length, stride_kt, HEAD_DIM, BLOCK_D)
        scores = _scores(q, k, rows, columns, length, softmax_scale, CAUSAL, PRECISION)
        higher = tl.maximum(m, tl.max(scores, 1))
        # A row whose scores are all -inf, as numbers that are not finite make them.
        shift = tl.where(higher == float("-inf"), 0.0, higher)
        probs = exp2(scores - shift[:, None], PRECISION)
        old = exp2(m - shift, PRECISION)
        total = total * old + tl.sum(probs, 1)
        acc *= old[:, None]
        m = higher
        if HAS_DROPOUT:
            keep = load_keep(bits_ptr, bits_rows, rows < length, first, bit_blocks, BLOCK_M, BLOCK_N)
            probs = tl.where(keep, probs, 0.0)
        v = load_rows(v_ptr, columns, length, stride_vt, HEAD_DIM, BLOCK_D)
        acc = add_product(acc, tl.dot(probs.to(v.dtype), v, input_precision=PRECISION), PRECISION)
    if HAS_DROPOUT:
        acc *= keep_scale
    total = tl.where(rows < length, total, 1.0)
    out_ptr += start * stride_ot + head * stride_oh
    out = quotient(acc, tl.broadcast_to(total[:, None], (BLOCK_M, BLOCK_D)), PRECISION)
    store_rows(out_ptr, rows, length, stride_ot, out, HEAD_DIM, BLOCK_D)
    # In natural logarithms, as every backend keeps it. Not by a quotient: a GPU's own is two units off, and backward
    # takes powers of it.
    lse = tl.where(rows < length, (m + tl.log2(total)) * LN2, 0.0)
    tl.store(lse_ptr + head.to(tl.int64) * T + start + rows, lse, mask=rows < length)


@kernel
def _attention_fwd_block_kernel(
    q_ptr,  # (T, nheads, HEAD_DIM), as k and v
    k_ptr,
    v_ptr,
    out_ptr,  # (T, nheads, HEAD_DIM)
    lse_ptr,  # (nheads, T) fp32
    cu_seqlens_ptr,  # (B + 1) int32
    rng_ptr,  # (2) int64
    stride_qt,
    stride_qh,
    stride_kt,
    stride_kh,
    stride_vt,
    stride_vh,
    stride_ot,
    stride_oh,
    T,
    nheads,
    softmax_scale,
    site,
    threshold,
    keep_scale,
    CAUSAL: tl.constexpr,
    HAS_DROPOUT: tl.constexpr,
    PRECISION: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """The same for sequences of at most BLOCK_N tokens: all scores of a row are there at once."""
    head, start, length, first_row = own_block(cu_seqlens_ptr, BLOCK_M)
    if first_row >= length:
        return
    rows = first_row + tl.arange(0, BLOCK_M)
    q = load_rows(q_ptr + start * stride_qt + head * stride_qh, rows, length, stride_qt, HEAD_DIM, BLOCK_D)
    k_ptr += start * stride_kt + head * stride_kh
    v_ptr += start * stride_vt + head * stride_vh
    if HAS_DROPOUT:
        seed, offset = tl.load(rng_ptr), tl.load(rng_ptr + 1)
        random_rows = (start + rows) * nheads + head
    columns = tl.arange(0, BLOCK_N)
    k = load_rows(k_ptr, columns, length, stride_kt, HEAD_DIM, BLOCK_D)
    scores = _scores(q, k, rows, columns, length, softmax_scale, CAUSAL, PRECISION)
    m = tl.max(scores, 1)
    # A row whose scores are all -inf, as numbers that are not finite make them.
    shift = tl.where(m == float("-inf"), 0.0, m)
    probs = exp2(scores - shift[:, None], PRECISION)
    total = tl.sum(probs, 1)
    if HAS_DROPOUT:
        keep = keep_bits(seed, offset, site, threshold, random_rows, 0, BLOCK_M, BLOCK_N)
        probs = tl.where(keep, probs, 0.0)
    v = load_rows(v_ptr, columns, length, stride_vt, HEAD_DIM, BLOCK_D)
    acc = tl.dot(probs.to(v.dtype), v, input_precision=PRECISION)
    if HAS_DROPOUT:
        acc *= keep_scale
    total = tl.where(rows < length, total, 1.0)
    out_ptr += start * stride_ot + head * stride_oh
    out = quotient(acc, tl.broadcast_to(total[:, None], (BLOCK_M, BLOCK_D)), PRECISION)
    store_rows(out_ptr, rows, length, stride_ot, out, HEAD_DIM, BLOCK_D)
    # In natural logarithms, as every backend keeps it. Not by a quotient: a GPU's own is two units off, and backward
    # takes powers of it.
    lse = tl.where(rows < length, (m + tl.log2(total)) * LN2, 0.0)
    tl.store(lse_ptr + head.to(tl.int64) * T + start + rows, lse, mask=rows < length)


# Of one launch: a grid's third dimension ends at 65,535, and the bounds that a launch is given begin at whole 16 bytes.
MOST_SEQUENCES = 32768


def launches(cu_seqlens: Tensor) -> list[Tensor]:
    """The bounds of each launch's sequences."""
    (cu_seqlens,) = whole(cu_seqlens)
    if 0 < cu_seqlens.numel() - 1 <= MOST_SEQUENCES:
        return [cu_seqlens]
    firsts = range(0, cu_seqlens.numel() - 1, MOST_SEQUENCES)
    return [cu_seqlens[first : first + MOST_SEQUENCES + 1] for first in firsts]


def precision(x: Tensor) -> str:
    """fp32 is computed in fp32."""
    return "ieee" if x.dtype == torch.float32 else "tf32"


def attention_forward(
    q, k, v, cu_seqlens, max_seqlen, softmax_scale, causal, rng, site, threshold, keep_scale, bits=None
):
    """q, k, v (T, nheads, head_dim), last dimension contiguous -> out of that shape, lse (nheads, T) fp32.

    ``bits`` are those of `dropout_bits`, where backward is to have them too.
    """
    tokens, nheads, head_dim = q.shape
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(nheads, tokens, dtype=torch.float32, device=q.device)
    if not (tokens and max_seqlen):
        return out, lse
    settings = forward_settings(head_dim, max_seqlen, q.element_size())
    tensors, strides = (q, k, v, out), [stride for x in (q, k, v, out) for stride in x.stride()[:2]]
    options = {
        "CAUSAL": causal,
        "HAS_DROPOUT": rng is not None,
        "PRECISION": precision(q),
        "HEAD_DIM": head_dim,
        "BLOCK_D": max(next_power_of_2(head_dim), 16),
        **settings,
    }
    if bits is None:
        bits = dropout_bits(q, cu_seqlens, max_seqlen, rng, site, threshold)
    for bounds in launches(cu_seqlens):
        grid = (cdiv(max_seqlen, settings["BLOCK_M"]), nheads, bounds.numel() - 1)
        if max_seqlen <= settings["BLOCK_N"]:
            random = empty_rng(q) if rng is None else rng
            scalars = (tokens, nheads, softmax_scale, site, threshold, keep_scale)
            _attention_fwd_block_kernel[grid](*tensors, lse, bounds, random, *strides, *scalars, **options)
        else:
            words, bit_blocks = attention_dropout.words(bits, settings["BLOCK_N"], q)
            scalars = (bit_blocks, tokens, softmax_scale, keep_scale)
            _attention_fwd_kernel[grid](*tensors, lse, bounds, words, *strides, *scalars, **options)
    return out, lse


def dropout_bits(q, cu_seqlens, max_seqlen, rng, site, threshold, *_keep_scale) -> Tensor | None:
    """The bits that the forward pass reads, for backward to read them too; None where it draws them itself, or nothing
    is dropped.
    """
    tokens, _, head_dim = q.shape
    settings = forward_settings(head_dim, max_seqlen, q.element_size())
    if rng is None or not tokens or max_seqlen <= settings["BLOCK_N"]:
        return None
    return attention_dropout.draw(q, launches(cu_seqlens), max_seqlen, rng, site, threshold)
