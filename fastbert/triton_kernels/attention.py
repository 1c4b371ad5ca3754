"""Varlen attention with dropout (Vaswani et al. 2017, eq. 1; tiling after Dao et al. 2022), forward.

O = dropout(softmax(scale Q K^T)) V within each sequence and head. Q, K and V are read once a block of queries and O is
written once; no S x S matrix is in memory. The softmax is in fp32 and its log sum exp is kept for backward. Up to 512
tokens in 16 bits there is one pass and no rescaling: all scores of a row are held at once.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .common import empty_rng, exp2, keep_bits, kernel, next_power_of_2, quotient, whole

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)


# Up to this length all scores of a row stay in registers; benchmarks/gpu measures both ways.
WHOLE_ROWS = 512


def forward_settings(head_dim: int, max_seqlen: int, itemsize: int) -> dict:
    """Tile sizes of the forward kernel; chosen by registers and shared memory (tests/triton_backend), on no GPU yet."""
    if itemsize == 4:
        return {"BLOCK_M": 32, "BLOCK_N": 32, "num_warps": 4, "num_stages": 1}
    if max_seqlen <= 64:
        return {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCKS": 1, "num_warps": 4, "num_stages": 1}
    if max_seqlen <= WHOLE_ROWS:
        # With one block of keys nothing is loaded ahead within a program: other programs must fill its waits, and of
        # four warps several fit on a multiprocessor.
        blocks = triton.cdiv(max_seqlen, 128)
        warps = 4 if blocks == 1 else 8
        return {"BLOCK_M": 64, "BLOCK_N": 128, "BLOCKS": blocks, "num_warps": warps, "num_stages": 1}
    if head_dim <= 64:
        return {"BLOCK_M": 128, "BLOCK_N": 128, "num_warps": 8, "num_stages": 2}
    return {"BLOCK_M": 128, "BLOCK_N": 64, "num_warps": 8, "num_stages": 2}


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
def score_mask(rows, columns, length, CAUSAL: tl.constexpr):
    """Which scores count: keys of this sequence and, in a causal model, none after the query."""
    inside = (rows[:, None] < length) & (columns[None, :] < length)
    if CAUSAL:
        inside &= columns[None, :] <= rows[:, None]
    return inside


@kernel
def _attention_fwd_kernel(
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
    head, sequence = tl.program_id(1), tl.program_id(2)
    start = tl.load(cu_seqlens_ptr + sequence).to(tl.int64)
    length = (tl.load(cu_seqlens_ptr + sequence + 1) - start).to(tl.int32)
    first_row = tl.program_id(0) * BLOCK_M
    if first_row >= length:
        return
    rows = first_row + tl.arange(0, BLOCK_M)
    q = load_rows(q_ptr + start * stride_qt + head * stride_qh, rows, length, stride_qt, HEAD_DIM, BLOCK_D)
    k_ptr += start * stride_kt + head * stride_kh
    v_ptr += start * stride_vt + head * stride_vh
    if HAS_DROPOUT:
        seed, offset = tl.load(rng_ptr), tl.load(rng_ptr + 1)
        random_rows = (start + rows) * nheads + head
    m = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    last = length
    if CAUSAL:
        last = tl.minimum(length, first_row + BLOCK_M)
    for first in range(0, last, BLOCK_N):
        columns = first + tl.arange(0, BLOCK_N)
        k = load_rows(k_ptr, columns, length, stride_kt, HEAD_DIM, BLOCK_D)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * (softmax_scale * LOG2E)
        scores = tl.where(score_mask(rows, columns, length, CAUSAL), scores, float("-inf"))
        higher = tl.maximum(m, tl.max(scores, 1))
        # Rows past the end have seen nothing but -inf.
        shift = tl.where(higher == float("-inf"), 0.0, higher)
        probs = exp2(scores - shift[:, None], PRECISION)
        old = exp2(m - shift, PRECISION)
        total = total * old + tl.sum(probs, 1)
        acc *= old[:, None]
        m = higher
        if HAS_DROPOUT:
            keep = keep_bits(seed, offset, site, threshold, random_rows, first // 8, BLOCK_M, BLOCK_N)
            probs = tl.where(keep, probs, 0.0)
        v = load_rows(v_ptr, columns, length, stride_vt, HEAD_DIM, BLOCK_D)
        acc += tl.dot(probs.to(v.dtype), v, input_precision=PRECISION)
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
def _attention_fwd_whole_kernel(
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
    BLOCKS: tl.constexpr,
    PRECISION: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """The same for sequences of at most BLOCKS blocks of keys: all scores of a row are there before the softmax, so
    nothing is rescaled. One tile as wide as they are spills; by blocks, only the scores are wide.
    """
    head, sequence = tl.program_id(1), tl.program_id(2)
    start = tl.load(cu_seqlens_ptr + sequence).to(tl.int64)
    length = (tl.load(cu_seqlens_ptr + sequence + 1) - start).to(tl.int32)
    first_row = tl.program_id(0) * BLOCK_M
    if first_row >= length:
        return
    rows = first_row + tl.arange(0, BLOCK_M)
    q = load_rows(q_ptr + start * stride_qt + head * stride_qh, rows, length, stride_qt, HEAD_DIM, BLOCK_D)
    k_ptr += start * stride_kt + head * stride_kh
    v_ptr += start * stride_vt + head * stride_vh
    if HAS_DROPOUT:
        seed, offset = tl.load(rng_ptr), tl.load(rng_ptr + 1)
        random_rows = (start + rows) * nheads + head
    last = length
    if CAUSAL:
        last = tl.minimum(length, first_row + BLOCK_M)
    scores = ()
    m = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    for block in tl.static_range(BLOCKS):
        part = tl.full((BLOCK_M, BLOCK_N), float("-inf"), tl.float32)
        if block * BLOCK_N < last:
            columns = block * BLOCK_N + tl.arange(0, BLOCK_N)
            k = load_rows(k_ptr, columns, length, stride_kt, HEAD_DIM, BLOCK_D)
            part = tl.dot(q, tl.trans(k), input_precision=PRECISION) * (softmax_scale * LOG2E)
            part = tl.where(score_mask(rows, columns, length, CAUSAL), part, float("-inf"))
        m = tl.maximum(m, tl.max(part, 1))
        scores = scores + (part,)  # noqa: RUF005, unpacking is not Triton
    # Rows past the end have seen nothing but -inf.
    shift = tl.where(m == float("-inf"), 0.0, m)
    total = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    for block in tl.static_range(BLOCKS):
        if block * BLOCK_N < last:
            probs = exp2(scores[block] - shift[:, None], PRECISION)
            total += tl.sum(probs, 1)
            if HAS_DROPOUT:
                group = block * BLOCK_N // 8
                keep = keep_bits(seed, offset, site, threshold, random_rows, group, BLOCK_M, BLOCK_N)
                probs = tl.where(keep, probs, 0.0)
            columns = block * BLOCK_N + tl.arange(0, BLOCK_N)
            v = load_rows(v_ptr, columns, length, stride_vt, HEAD_DIM, BLOCK_D)
            acc += tl.dot(probs.to(v.dtype), v, input_precision=PRECISION)
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
    firsts = range(0, cu_seqlens.numel() - 1, MOST_SEQUENCES)
    return [cu_seqlens[first : first + MOST_SEQUENCES + 1] for first in firsts]


def precision(x: Tensor) -> str:
    """fp32 is computed in fp32."""
    return "ieee" if x.dtype == torch.float32 else "tf32"


def attention_forward(q, k, v, cu_seqlens, max_seqlen, softmax_scale, causal, rng, site, threshold, keep_scale):
    """q, k, v (T, nheads, head_dim), last dimension contiguous -> out of that shape, lse (nheads, T) fp32."""
    tokens, nheads, head_dim = q.shape
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(nheads, tokens, dtype=torch.float32, device=q.device)
    if not (tokens and max_seqlen):
        return out, lse
    settings = forward_settings(head_dim, max_seqlen, q.element_size())
    forward = _attention_fwd_whole_kernel if "BLOCKS" in settings else _attention_fwd_kernel
    for bounds in launches(cu_seqlens):
        forward[(triton.cdiv(max_seqlen, settings["BLOCK_M"]), nheads, bounds.numel() - 1)](
            *(q, k, v, out, lse, bounds, empty_rng(q) if rng is None else rng),
            *(stride for x in (q, k, v, out) for stride in x.stride()[:2]),
            *(tokens, nheads, softmax_scale, site, threshold, keep_scale),
            CAUSAL=causal,
            HAS_DROPOUT=rng is not None,
            PRECISION=precision(q),
            HEAD_DIM=head_dim,
            BLOCK_D=max(next_power_of_2(head_dim), 16),
            **settings,
        )
    return out, lse
