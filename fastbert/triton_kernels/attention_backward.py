"""Backward of varlen attention: P is computed again from lse, and the dropout's bits are read or drawn again.

    D = rowsum(dO * O);  P = exp(scale Q K^T - lse);  Z = keep / (1 - p)
    dV = (P Z)^T dO;  dS = P (Z (dO V^T) - D);  dQ = scale dS K;  dK = scale dS^T Q

The factor 1 / (1 - p) is left out of Z; the sums are multiplied by it at the end (keep_scale).

One kernel goes over blocks of queries, makes D on the way and sums dQ over keys; another goes over blocks of keys and
sums dK and dV over queries. Each sum stays in one program, so there are no atomics and the bits are the same every
time. Where one block of queries is the whole sequence, the first kernel does it all: five products of matrices in place
of seven, each probability and its dropout bit made once and not twice, and q, k, v and dO read once.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import attention_dropout
from .attention import LOG2E, clear_rows_behind, constants, launches, load_rows, store_rows, strides
from .attention_dropout import load_keep
from .common import add_product, arch, cdiv, empty_rng, exp2, keep_bits, kernel, own_block

# Triton 3.3 takes 16 to 32 KiB more shared memory on Ampere: with loads ahead 112 KiB, where GPUs of compute capability
# 8.6 and 8.9 have 99.
_STAGES = 1 if triton.__version__.startswith("3.3.") else 2


def backward_settings(head_dim: int, max_seqlen: int, itemsize: int, arch: int = 90) -> dict:
    """Tile sizes of the kernel of dQ. Those for heads of 64 in 16 bits are the fastest on an H200 at 128 and 512 tokens
    (benchmarks/gpu/settings.py); the others were chosen by the registers and shared memory that they take. Sequences of
    at most BLOCK_M tokens are done in one pass.

    Args:
        arch: the GPU's (`common.arch`).
    """
    if itemsize == 4:
        return {"BLOCK_M": 32, "BLOCK_N": 16 if head_dim > 64 else 32, "num_warps": 4, "num_stages": 1}
    if head_dim > 64:
        return {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 8, "num_stages": 1}
    # On other GPUs products read all their operands from registers: with 64 keys 24 to 480 bytes a thread spill there.
    columns = 64 if arch // 10 in (9, 10) else 32
    if 64 < max_seqlen <= 128:
        return {"BLOCK_M": 128, "BLOCK_N": columns, "num_warps": 8, "num_stages": _STAGES}
    stages = 3 if columns == 64 and max_seqlen > 64 else 2
    return {"BLOCK_M": 64, "BLOCK_N": columns, "num_warps": 4, "num_stages": stages}


def keys_settings(settings: dict, head_dim: int) -> dict:
    """The same for the kernel of dK and dV: as many keys in a program as the other has queries. For wide heads, whose
    sums take half of its registers, it reads fewer queries at a time.
    """
    turned = {**settings, "BLOCK_M": settings["BLOCK_N"], "BLOCK_N": settings["BLOCK_M"]}
    turned["num_stages"] = min(settings["num_stages"], 2)
    return {**turned, "BLOCK_M": min(turned["BLOCK_M"], 32), "num_warps": 4} if head_dim > 64 else turned


@triton.jit
def _delta(dout, out, threshold, HAS_DROPOUT: tl.constexpr):
    """D of each row; with dropout times the probability of being kept, as `_kept_and_dscores` takes it."""
    delta = tl.sum(dout.to(tl.float32) * out.to(tl.float32), 1)
    if HAS_DROPOUT:
        delta *= (65536 - threshold) * (1 / 65536)
    return delta


@triton.jit
def _kept_and_dscores(
    q, k, v, dout, lse2, delta, rows, columns, length, softmax_scale, keep, first_column,
    CAUSAL: tl.constexpr, HAS_DROPOUT: tl.constexpr, TRANSPOSED: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    """(P Z, dS) of one tile, fp32, both divided by keep_scale: (rows, columns), or TRANSPOSED the other way round.

    Rows past the end have zeros for all that is read of them: their P is 1, and every factor beside it is zero. Keys
    past the end have zeros too, but their P, and dS with it, may be anything up to infinity. TRANSPOSED, a key's sums
    are its own, and those of such keys are not stored; otherwise sums are over keys, and such keys are masked.
    """
    # The order of the products does not change the results, but how many registers are needed.
    DPROBS_FIRST: tl.constexpr = TRANSPOSED and PRECISION != "ieee"
    if TRANSPOSED:
        scores = tl.dot(k, tl.trans(q), input_precision=PRECISION)
        if DPROBS_FIRST:
            dprobs = tl.dot(v, tl.trans(dout), input_precision=PRECISION)
        lse2, delta, rows, columns = lse2[None, :], delta[None, :], rows[None, :], columns[:, None]
    else:
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        lse2, delta, rows, columns = lse2[:, None], delta[:, None], rows[:, None], columns[None, :]
    probs = exp2(scores * (softmax_scale * LOG2E) - lse2, PRECISION)
    if CAUSAL:  # this masks keys past the end as well: they come after every row of the sequence
        probs = tl.where(columns <= rows, probs, 0.0)
    elif not TRANSPOSED:  # noqa: SIM102, a constexpr condition stands alone
        if first_column + BLOCK_N > length:
            probs = tl.where(columns < length, probs, 0.0)
    kept = probs
    if HAS_DROPOUT:
        kept = tl.where(keep, probs, 0.0)
    if not TRANSPOSED:
        dprobs = tl.dot(dout, tl.trans(v), input_precision=PRECISION)
    elif not DPROBS_FIRST:
        dprobs = tl.dot(v, tl.trans(dout), input_precision=PRECISION)
    if HAS_DROPOUT:
        dscores = kept * dprobs - probs * delta
    else:
        dscores = probs * (dprobs - delta)
    return kept, dscores


@kernel
def _attention_bwd_dkdv_kernel(
    q_ptr,  # (T, nheads, HEAD_DIM), as k, v and dout
    k_ptr,
    v_ptr,
    dout_ptr,
    lse2_ptr,  # (nheads, T) fp32, as delta; in base 2
    delta_ptr,
    dk_ptr,  # (T, nheads, HEAD_DIM)
    dv_ptr,
    cu_seqlens_ptr,
    bits_ptr,  # (nheads, T, 128 bit_blocks) bits of the dropout, in words
    stride_qt,
    stride_qh,
    stride_kt,
    stride_kh,
    stride_vt,
    stride_vh,
    stride_dot,
    stride_doh,
    stride_dkt,
    stride_dkh,
    stride_dvt,
    stride_dvh,
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
        end, head = tl.load(cu_seqlens_ptr + sequences), tl.program_id(1)
        clear_rows_behind(dk_ptr + head * stride_dkh, end, T, stride_dkt, HEAD_DIM, BLOCK_D, BLOCK_N)
        clear_rows_behind(dv_ptr + head * stride_dvh, end, T, stride_dvt, HEAD_DIM, BLOCK_D, BLOCK_N)
        return
    head, start, length, first_column = own_block(cu_seqlens_ptr, BLOCK_N)
    if first_column >= length:
        return
    columns = first_column + tl.arange(0, BLOCK_N)
    k = load_rows(k_ptr + start * stride_kt + head * stride_kh, columns, length, stride_kt, HEAD_DIM, BLOCK_D)
    v = load_rows(v_ptr + start * stride_vt + head * stride_vh, columns, length, stride_vt, HEAD_DIM, BLOCK_D)
    q_ptr += start * stride_qt + head * stride_qh
    dout_ptr += start * stride_dot + head * stride_doh
    lse2_ptr += head.to(tl.int64) * T + start
    delta_ptr += head.to(tl.int64) * T + start
    first_bits = head.to(tl.int64) * T + start
    dk = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    dv = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    begin = 0
    if CAUSAL:
        begin = first_column // BLOCK_M * BLOCK_M
    for first_row in range(begin, length, BLOCK_M):
        rows = first_row + tl.arange(0, BLOCK_M)
        q = load_rows(q_ptr, rows, length, stride_qt, HEAD_DIM, BLOCK_D)
        dout = load_rows(dout_ptr, rows, length, stride_dot, HEAD_DIM, BLOCK_D)
        lse2 = tl.load(lse2_ptr + rows, mask=rows < length, other=0.0)
        delta = tl.load(delta_ptr + rows, mask=rows < length, other=0.0)
        keep = 0
        if HAS_DROPOUT:
            keep = load_keep(bits_ptr, first_bits + rows, rows < length, first_column, bit_blocks, BLOCK_M, BLOCK_N)
            keep = tl.trans(keep)
        kept, dscores = _kept_and_dscores(
            q, k, v, dout, lse2, delta, rows, columns, length, softmax_scale, keep, first_column,
            CAUSAL, HAS_DROPOUT, True, PRECISION, BLOCK_N,
        )  # fmt: skip
        # In this order fewer registers are needed.
        dk = add_product(dk, tl.dot(dscores.to(q.dtype), q, input_precision=PRECISION), PRECISION)
        if PRECISION == "ieee":  # side by side the two spill 8 bytes a thread
            tl.debug_barrier()
        dv = add_product(dv, tl.dot(kept.to(dout.dtype), dout, input_precision=PRECISION), PRECISION)
    dk_ptr += start * stride_dkt + head * stride_dkh
    dv_ptr += start * stride_dvt + head * stride_dvh
    store_rows(dk_ptr, columns, length, stride_dkt, dk * (softmax_scale * keep_scale), HEAD_DIM, BLOCK_D)
    store_rows(dv_ptr, columns, length, stride_dvt, dv * keep_scale, HEAD_DIM, BLOCK_D)


@kernel
def _attention_bwd_dq_kernel(
    q_ptr,  # (T, nheads, HEAD_DIM), as k, v and dout
    k_ptr,
    v_ptr,
    dout_ptr,
    lse_ptr,  # (nheads, T) fp32, as the two that are written, lse in base 2 and delta
    lse2_ptr,
    delta_ptr,
    out_ptr,  # (T, nheads, HEAD_DIM), as dq, dk and dv
    dq_ptr,
    dk_ptr,
    dv_ptr,
    cu_seqlens_ptr,
    rng_ptr,  # (2) int64, for ONE_PASS
    bits_ptr,  # (nheads, T, 128 bit_blocks) bits of the dropout, in words, otherwise
    stride_qt,
    stride_qh,
    stride_kt,
    stride_kh,
    stride_vt,
    stride_vh,
    stride_dot,
    stride_doh,
    stride_ot,
    stride_oh,
    stride_dqt,
    stride_dqh,
    stride_dkt,
    stride_dkh,
    stride_dvt,
    stride_dvh,
    bit_blocks,
    T,
    nheads,
    sequences,
    softmax_scale,
    site,
    threshold,
    keep_scale,
    CAUSAL: tl.constexpr,
    HAS_DROPOUT: tl.constexpr,
    ONE_PASS: tl.constexpr,
    PRECISION: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """In ONE_PASS one block of queries is the whole sequence, from which alone each block of keys has its dK and dV.
    Otherwise lse2 and delta are stored for the kernel of dK and dV, and neither dk nor dv is touched.
    """
    if tl.program_id(2) == sequences:
        end, head = tl.load(cu_seqlens_ptr + sequences), tl.program_id(1)
        clear_rows_behind(dq_ptr + head * stride_dqh, end, T, stride_dqt, HEAD_DIM, BLOCK_D, BLOCK_M)
        if ONE_PASS:
            clear_rows_behind(dk_ptr + head * stride_dkh, end, T, stride_dkt, HEAD_DIM, BLOCK_D, BLOCK_M)
            clear_rows_behind(dv_ptr + head * stride_dvh, end, T, stride_dvt, HEAD_DIM, BLOCK_D, BLOCK_M)
        return
    head, start, length, first_row = own_block(cu_seqlens_ptr, BLOCK_M)
    if first_row >= length:
        return
    rows = first_row + tl.arange(0, BLOCK_M)
    q_ptr += start * stride_qt + head * stride_qh
    dout_ptr += start * stride_dot + head * stride_doh
    q = load_rows(q_ptr, rows, length, stride_qt, HEAD_DIM, BLOCK_D)
    dout = load_rows(dout_ptr, rows, length, stride_dot, HEAD_DIM, BLOCK_D)
    out = load_rows(out_ptr + start * stride_ot + head * stride_oh, rows, length, stride_ot, HEAD_DIM, BLOCK_D)
    delta = _delta(dout, out, threshold, HAS_DROPOUT)
    at, inside = head.to(tl.int64) * T + start + rows, rows < length
    lse2 = tl.load(lse_ptr + at, mask=inside, other=0.0) * LOG2E
    if ONE_PASS:
        dk_ptr += start * stride_dkt + head * stride_dkh
        dv_ptr += start * stride_dvt + head * stride_dvh
    else:
        tl.store(lse2_ptr + at, lse2, mask=inside)
        tl.store(delta_ptr + at, delta, mask=inside)
        if PRECISION == "ieee":
            # Products in fp32 want these in other threads than the sum of delta does: loaded again for them, as both
            # layouts at once spill 224 bytes a thread.
            tl.debug_barrier()
            q = load_rows(q_ptr, rows, length, stride_qt, HEAD_DIM, BLOCK_D)
            dout = load_rows(dout_ptr, rows, length, stride_dot, HEAD_DIM, BLOCK_D)
            delta = tl.load(delta_ptr + at, mask=inside, other=0.0)
    k_ptr += start * stride_kt + head * stride_kh
    v_ptr += start * stride_vt + head * stride_vh
    if HAS_DROPOUT and ONE_PASS:
        seed, offset = tl.load(rng_ptr), tl.load(rng_ptr + 1)
    dq = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    last = length
    if CAUSAL:
        last = tl.minimum(length, first_row + BLOCK_M)
    for first_column in range(0, last, BLOCK_N):
        columns = first_column + tl.arange(0, BLOCK_N)
        k = load_rows(k_ptr, columns, length, stride_kt, HEAD_DIM, BLOCK_D)
        v = load_rows(v_ptr, columns, length, stride_vt, HEAD_DIM, BLOCK_D)
        keep = 0
        if HAS_DROPOUT:
            if ONE_PASS:
                random_rows = (start + rows) * nheads + head
                group = first_column // 8
                keep = keep_bits(seed, offset, site, threshold, random_rows, group, BLOCK_M, BLOCK_N)
            else:
                keep = load_keep(bits_ptr, at, inside, first_column, bit_blocks, BLOCK_M, BLOCK_N)
        kept, dscores = _kept_and_dscores(
            q, k, v, dout, lse2, delta, rows, columns, length, softmax_scale, keep, first_column,
            CAUSAL, HAS_DROPOUT, False, PRECISION, BLOCK_N,
        )  # fmt: skip
        dscores = dscores.to(k.dtype)
        dq = add_product(dq, tl.dot(dscores, k, input_precision=PRECISION), PRECISION)
        if ONE_PASS:
            dv = tl.dot(tl.trans(kept.to(dout.dtype)), dout, input_precision=PRECISION) * keep_scale
            dk = tl.dot(tl.trans(dscores), q, input_precision=PRECISION) * (softmax_scale * keep_scale)
            store_rows(dv_ptr, columns, length, stride_dvt, dv, HEAD_DIM, BLOCK_D)
            store_rows(dk_ptr, columns, length, stride_dkt, dk, HEAD_DIM, BLOCK_D)
    dq_ptr += start * stride_dqt + head * stride_dqh
    store_rows(dq_ptr, rows, length, stride_dqt, dq * (softmax_scale * keep_scale), HEAD_DIM, BLOCK_D)


def attention_backward(
    dout,
    q,
    k,
    v,
    out,
    lse,
    cu_seqlens,
    max_seqlen,
    softmax_scale,
    causal,
    rng,
    site,
    threshold,
    keep_scale,
    into=None,
    bits=None,
) -> tuple[Tensor, Tensor, Tensor]:
    """-> dq, dk, dv (T, nheads, head_dim), which are the tensors of ``into`` where these are given. Tokens behind the
    last sequence get zeros.

    ``bits`` are the forward pass's (`attention.dropout_bits`); without them they are drawn again.
    """
    tokens, nheads, head_dim = q.shape
    dq, dk, dv = into or (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
    if not (tokens and max_seqlen and cu_seqlens.numel() > 1):
        return dq.zero_(), dk.zero_(), dv.zero_()
    settings = backward_settings(head_dim, max_seqlen, q.element_size(), arch(q.device))
    keys = keys_settings(settings, head_dim)
    one_pass = max_seqlen <= settings["BLOCK_M"]
    lse2, delta = (lse, lse) if one_pass else (torch.empty_like(lse), torch.empty_like(lse))
    random = empty_rng(q) if rng is None else rng
    if bits is None and rng is not None and not one_pass:
        bits = attention_dropout.draw(q, launches(cu_seqlens), max_seqlen, rng, site, threshold)
    words, bit_blocks = attention_dropout.words(bits, settings["BLOCK_N"], q)
    options = constants(q, causal, rng)
    scalars = (softmax_scale, site, threshold, keep_scale)
    given, written = (q, k, v, dout), (dq, dk, dv)
    parts = launches(cu_seqlens)
    for bounds in parts:
        sequences = bounds.numel() - 1
        # The last launch also has programs for the tokens behind the last sequence.
        rest = (nheads, sequences + (bounds is parts[-1]))
        _attention_bwd_dq_kernel[(cdiv(max_seqlen, settings["BLOCK_M"]), *rest)](
            *(*given, lse, lse2, delta, out, *written, bounds, random, words),
            *(*strides(*given, out, *written), bit_blocks, tokens, nheads, sequences, *scalars),
            ONE_PASS=one_pass,
            **options,
            **settings,
        )
        if not one_pass:
            of_keys, _ = attention_dropout.words(bits, keys["BLOCK_N"], q)
            _attention_bwd_dkdv_kernel[(cdiv(max_seqlen, keys["BLOCK_N"]), *rest)](
                *(*given, lse2, delta, dk, dv, bounds, of_keys, *strides(*given, dk, dv)),
                *(bit_blocks, tokens, sequences, softmax_scale, keep_scale),
                **options,
                **keys,
            )
    return dq, dk, dv
