"""Varlen attention with dropout (Vaswani et al. 2017, eq. 1; tiling after Dao et al. 2022), forward.

O = dropout(softmax(scale Q K^T)) V within each sequence and head. A block of queries reads its Q, and all keys and
values, once and writes its O once; no S x S matrix is ever in memory. The softmax is in fp32, and its log-sum-exp is
kept for backward. Where one block of keys is the whole sequence, nothing has to be rescaled.
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
    """Tile sizes of the forward kernels. Those for heads of 64 in 16 bits are the fastest on an H200 at 128 and 512
    tokens (benchmarks/gpu/settings.py); the others were chosen by the registers and shared memory that they take.
    Sequences of at most BLOCK_N tokens go to the one-block kernel.
    """
    if itemsize == 4:
        # A thread holds its share of every operand in registers: with 32 keys of wide heads 456 bytes of it spill.
        return {"BLOCK_M": 32, "BLOCK_N": 16 if head_dim > 64 else 32, "num_warps": 4, "num_stages": 1}
    if max_seqlen <= 128:
        # With one block of keys a program has nothing to load ahead, so other programs must hide its waits for memory:
        # with four warps each, several fit on a multiprocessor.
        return {"BLOCK_M": 64, "BLOCK_N": 64 if max_seqlen <= 64 else 128, "num_warps": 4, "num_stages": 1}
    return {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 3 if head_dim <= 64 else 2}


@triton.jit
def load_rows(ptr, rows, length, stride, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr):
    """These rows, filled up to BLOCK_D columns, of a (length, HEAD_DIM) matrix whose rows are `stride` apart; zero
    outside the matrix.
    """
    columns = tl.arange(0, BLOCK_D)
    inside = (rows[:, None] < length) & (columns[None, :] < HEAD_DIM)
    return tl.load(ptr + rows[:, None].to(tl.int64) * stride + columns[None, :], mask=inside, other=0.0)


@triton.jit
def store_rows(ptr, rows, length, stride, values, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr):
    """Stores what `load_rows` would load, in the matrix's dtype."""
    columns = tl.arange(0, BLOCK_D)
    inside = (rows[:, None] < length) & (columns[None, :] < HEAD_DIM)
    at = ptr + rows[:, None].to(tl.int64) * stride + columns[None, :]
    tl.store(at, values.to(ptr.dtype.element_ty), mask=inside)


@triton.jit
def clear_rows_behind(ptr, first, end, stride, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr):
    """Stores zeros in the rows from ``first`` up to ``end``, of which each program of the grid's first dimension has
    its blocks: those of tokens behind the last sequence, which a `fastbert.ops.RoomPacking` has. The products that
    follow sum over them: zeros times what somebody left in that memory may be NaN.
    """
    zeros = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    for block in range(first + tl.program_id(0) * BLOCK_M, end, tl.num_programs(0) * BLOCK_M):
        store_rows(ptr, block + tl.arange(0, BLOCK_M), end, stride, zeros, HEAD_DIM, BLOCK_D)


@triton.jit
def _scores(q, k, rows, columns, length, softmax_scale, CAUSAL: tl.constexpr, PRECISION: tl.constexpr):
    """Scores of one tile in base 2: times log2(e), so that 2^score is what the softmax sums. Rows past the end of the
    sequence get scores too, which are never used.
    """
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * (softmax_scale * LOG2E)
    if CAUSAL:  # this masks keys past the end as well: they come after every row of the sequence
        return tl.where(columns[None, :] <= rows[:, None], scores, float("-inf"))
    else:  # added and not selected: a multiply-add, with the multiplication above
        return scores + tl.where(columns < length, 0.0, float("-inf"))[None, :]


@triton.jit
def _store_outputs(
    out_ptr, lse_ptr, acc, m, total, head, start, rows, length, stride_ot, stride_oh, T,
    PRECISION: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Stores out and lse of a block of queries, from what was summed over all keys of the sequence.

    m is the largest score of each row, in base 2; total is the sum of 2^(score - m), and acc that of the rows of V
    times these, after dropout.
    """
    total = tl.where(rows < length, total, 1.0)
    out_ptr += start * stride_ot + head * stride_oh
    out = quotient(acc, tl.broadcast_to(total[:, None], acc.shape), PRECISION)
    store_rows(out_ptr, rows, length, stride_ot, out, HEAD_DIM, BLOCK_D)
    # In natural logarithms, as every backend keeps it. Multiplied by LN2, not divided by LOG2E: a GPU's own quotient is
    # up to two units off, and backward takes powers of the result.
    lse = tl.where(rows < length, (m + tl.log2(total)) * LN2, 0.0)
    tl.store(lse_ptr + head.to(tl.int64) * T + start + rows, lse, mask=rows < length)


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
    sequences,
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
    if tl.program_id(2) == sequences:
        end = tl.load(cu_seqlens_ptr + sequences)
        clear_rows_behind(out_ptr + tl.program_id(1) * stride_oh, end, T, stride_ot, HEAD_DIM, BLOCK_D, BLOCK_M)
        return
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
        # All scores of a row are -inf where q or k is not finite: -inf minus -inf would be NaN.
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
    _store_outputs(
        out_ptr, lse_ptr, acc, m, total, head, start, rows, length, stride_ot, stride_oh, T,
        PRECISION, HEAD_DIM, BLOCK_D,
    )  # fmt: skip


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
    sequences,
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
    """The same for sequences of at most BLOCK_N tokens: all scores of a row, and so its largest, are there at once."""
    if tl.program_id(2) == sequences:
        end = tl.load(cu_seqlens_ptr + sequences)
        clear_rows_behind(out_ptr + tl.program_id(1) * stride_oh, end, T, stride_ot, HEAD_DIM, BLOCK_D, BLOCK_M)
        return
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
    # All scores of a row are -inf where q or k is not finite: -inf minus -inf would be NaN.
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
    _store_outputs(
        out_ptr, lse_ptr, acc, m, total, head, start, rows, length, stride_ot, stride_oh, T,
        PRECISION, HEAD_DIM, BLOCK_D,
    )  # fmt: skip


# Sequences of one launch: a grid's third dimension may be 65,535 at most. A multiple of four, so that the part of
# cu_seqlens that each launch is given begins at a multiple of 16 bytes.
MOST_SEQUENCES = 32768


def launches(cu_seqlens: Tensor) -> list[Tensor]:
    """cu_seqlens, of at least one sequence, cut into the part that each launch takes; neighbouring parts share a
    bound."""
    (cu_seqlens,) = whole(cu_seqlens)
    if cu_seqlens.numel() - 1 <= MOST_SEQUENCES:
        return [cu_seqlens]
    firsts = range(0, cu_seqlens.numel() - 1, MOST_SEQUENCES)
    return [cu_seqlens[first : first + MOST_SEQUENCES + 1] for first in firsts]


def strides(*tensors: Tensor) -> list[int]:
    """Of the tokens and the heads of each (T, nheads, head_dim), as the kernels take them."""
    return [stride for x in tensors for stride in x.stride()[:2]]


def constants(q: Tensor, causal: bool, rng: Tensor | None) -> dict:
    """What every attention kernel is compiled for, besides its tile."""
    head_dim = q.shape[2]
    return {
        "CAUSAL": causal,
        "HAS_DROPOUT": rng is not None,
        # fp32 is computed in fp32. Products of 16 bits are the same under both; "tf32" also stands for the GPU's own
        # powers and quotients (common.exp2).
        "PRECISION": "ieee" if q.dtype == torch.float32 else "tf32",
        "HEAD_DIM": head_dim,
        "BLOCK_D": max(next_power_of_2(head_dim), 16),  # tl.dot sums over at least 16
    }


def attention_forward(
    q, k, v, cu_seqlens, max_seqlen, softmax_scale, causal, rng, site, threshold, keep_scale, bits=None
):
    """q, k, v (T, nheads, head_dim), last dimension contiguous -> out of that shape, lse (nheads, T) fp32. Tokens
    behind the last sequence get zeros in out.

    ``bits`` are what `dropout_bits` gave, for a caller that hands them to backward too.
    """
    tokens, nheads, head_dim = q.shape
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(nheads, tokens, dtype=torch.float32, device=q.device)
    if not (tokens and max_seqlen and cu_seqlens.numel() > 1):
        return out.zero_(), lse
    settings = forward_settings(head_dim, max_seqlen, q.element_size())
    tensors = (q, k, v, out)
    options = {**constants(q, causal, rng), **settings}
    if bits is None:
        bits = dropout_bits(q, cu_seqlens, max_seqlen, rng, site, threshold)
    parts = launches(cu_seqlens)
    for bounds in parts:
        sequences = bounds.numel() - 1
        # The last launch also has programs for the tokens behind the last sequence.
        grid = (cdiv(max_seqlen, settings["BLOCK_M"]), nheads, sequences + (bounds is parts[-1]))
        if max_seqlen <= settings["BLOCK_N"]:
            random = empty_rng(q) if rng is None else rng
            scalars = (tokens, nheads, sequences, softmax_scale, site, threshold, keep_scale)
            _attention_fwd_block_kernel[grid](*tensors, lse, bounds, random, *strides(*tensors), *scalars, **options)
        else:
            words, bit_blocks = attention_dropout.words(bits, settings["BLOCK_N"], q)
            scalars = (bit_blocks, tokens, sequences, softmax_scale, keep_scale)
            _attention_fwd_kernel[grid](*tensors, lse, bounds, words, *strides(*tensors), *scalars, **options)
    return out, lse


def dropout_bits(q, cu_seqlens, max_seqlen, rng, site, threshold, *_keep_scale) -> Tensor | None:
    """The bits that the forward kernel reads, which backward can read again; None where the kernel draws them itself,
    or nothing is dropped.
    """
    tokens, _, head_dim = q.shape
    settings = forward_settings(head_dim, max_seqlen, q.element_size())
    if rng is None or not tokens or max_seqlen <= settings["BLOCK_N"] or cu_seqlens.numel() < 2:
        return None
    return attention_dropout.draw(q, launches(cu_seqlens), max_seqlen, rng, site, threshold)
