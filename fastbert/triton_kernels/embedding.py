"""dropout(LN(word[id] + token_type[type] + position[place])) (Devlin et al. 2019, figure 2), forward and backward.

    z = word + type + position;  out = dropout((z - mean) rstd weight + bias)
    d = dropout(dout), the same bits;  g = d weight;  dz = rstd (g - mean(g) - zhat mean(g zhat))

Forward reads a row of each table and writes out, and z for backward, for which the tables may hold other values by
then. dz is the gradient of all three rows. The gradient of a table is summed without atomics: tokens are sorted by id,
and the rows of each run of equal ids are summed. Stage one sums runs within chunks of 32 sorted tokens, and writes each
sum to the place of its first token. Stage two, at the first token of every run, adds the sums of its later chunks, 16
at a time. A run of n tokens thus waits for memory n / 512 times, which matters for segment ids (of which there are two)
and [MASK].
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .common import cdiv, empty_rng, keep_bits, kernel, next_power_of_2, rows_per_program, whole
from .layer_norm import normalised, sum_gradient, sum_rows, warps

CHUNK = tl.constexpr(32)
PARTS = 16  # sums of a run's chunks that are added at a time


@triton.jit
def _row_sum(ids_ptr, types_ptr, places_ptr, word_ptr, type_ptr, position_ptr, token, V, TYPES, P, N, columns):
    """(1, BLOCK_N) fp32, z of a token; NaN if an id is out of range, so that no memory out of bounds is read."""
    word, kind, place = tl.load(ids_ptr + token), tl.load(types_ptr + token), tl.load(places_ptr + token)
    valid = (word >= 0) & (word < V) & (kind >= 0) & (kind < TYPES) & (place >= 0) & (place < P)
    # A single comparison: Triton 3.9's interpreter cannot combine masks of a block and of a scalar.
    here = columns < tl.where(valid, N, 0)
    z = tl.load(word_ptr + word * N + columns, mask=here, other=0.0).to(tl.float32)
    z += tl.load(type_ptr + kind * N + columns, mask=here, other=0.0).to(tl.float32)
    z += tl.load(position_ptr + place * N + columns, mask=here, other=0.0).to(tl.float32)
    return tl.where(valid, z, float("nan"))


@kernel
def _embedding_fwd_kernel(
    ids_ptr,  # (T) int64, as types and places
    types_ptr,
    places_ptr,
    word_ptr,  # (V, N)
    type_ptr,  # (TYPES, N)
    position_ptr,  # (P, N)
    weight_ptr,  # (N)
    bias_ptr,  # (N)
    out_ptr,  # (T, N)
    total_ptr,  # (T, N) fp32, z
    mean_ptr,  # (T) fp32
    rstd_ptr,  # (T) fp32
    rng_ptr,  # (2) int64: seed, offset
    V,
    TYPES,
    P,
    N,
    eps,
    site,
    threshold,
    scale,
    HAS_DROPOUT: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SAVE: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK_N)[None, :]
    inside = columns < N
    z = _row_sum(ids_ptr, types_ptr, places_ptr, word_ptr, type_ptr, position_ptr, token, V, TYPES, P, N, columns)
    if SAVE:
        tl.store(total_ptr + token * N + columns, z, mask=inside)
    out, mean, rstd = normalised(tl.where(inside, z, 0.0), columns, N, eps, weight_ptr, bias_ptr)
    if HAS_DROPOUT:
        seed, offset = tl.load(rng_ptr), tl.load(rng_ptr + 1)
        keep = keep_bits(seed, offset, site, threshold, tl.zeros((1,), tl.int64) + token, 0, 1, BLOCK_N)
        out = tl.where(keep, out * scale, 0.0)
    tl.store(out_ptr + token * N + columns, out.to(out_ptr.dtype.element_ty), mask=inside)
    one = tl.arange(0, 1)
    tl.store(mean_ptr + token + one, mean)
    tl.store(rstd_ptr + token + one, rstd)


@kernel
def _embedding_bwd_kernel(
    dout_ptr,  # (T, N)
    total_ptr,  # (T, N) fp32, z
    weight_ptr,  # (N)
    mean_ptr,  # (T) fp32
    rstd_ptr,  # (T) fp32
    dsum_ptr,  # (T, N), dz
    partial_ptr,  # (programs, 2, N) fp32: dweight, dbias
    rng_ptr,
    T,
    N,
    rows_each,
    site,
    threshold,
    scale,
    HAS_DROPOUT: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    program = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK_N)[None, :]
    inside = columns < N
    weight = tl.load(weight_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    dweight = tl.zeros((1, BLOCK_N), tl.float32)
    dbias = tl.zeros((1, BLOCK_N), tl.float32)
    if HAS_DROPOUT:
        seed, offset = tl.load(rng_ptr), tl.load(rng_ptr + 1)
    first = program * rows_each
    for token in range(first, tl.minimum(first + rows_each, T)):
        z = tl.load(total_ptr + token * N + columns, mask=inside, other=0.0)
        dout = tl.load(dout_ptr + token * N + columns, mask=inside, other=0.0).to(tl.float32)
        if HAS_DROPOUT:
            keep = keep_bits(seed, offset, site, threshold, tl.zeros((1,), tl.int64) + token, 0, 1, BLOCK_N)
            dout = tl.where(keep, dout * scale, 0.0)
        mean, rstd = tl.load(mean_ptr + token), tl.load(rstd_ptr + token)
        dz, normal = sum_gradient(dout, z, mean, rstd, weight, inside, N)
        tl.store(dsum_ptr + token * N + columns, dz.to(dsum_ptr.dtype.element_ty), mask=inside)
        dweight += dout * normal
        dbias += dout
    partial = partial_ptr + program * 2 * N + columns
    tl.store(partial, dweight, mask=inside)
    tl.store(partial + N, dbias, mask=inside)


@kernel
def _sum_chunks_kernel(
    dout_ptr,  # (T, N)
    sorted_ptr,  # (T) the ids in their order, int16 or int32
    order_ptr,  # (T) int64: the token at each sorted place
    partial_ptr,  # (T, N) fp32
    T,
    N,
    BLOCK_N: tl.constexpr,
):
    first = tl.program_id(0).to(tl.int64) * CHUNK
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = columns < N
    acc = tl.zeros((BLOCK_N,), tl.float32)
    begin = first
    for place in range(first, tl.minimum(first + CHUNK, T)):
        here = tl.load(sorted_ptr + place)
        token = tl.load(order_ptr + place)
        acc += tl.load(dout_ptr + token * N + columns, mask=inside, other=0.0).to(tl.float32)
        ends = place + 1 == tl.minimum(first + CHUNK, T)
        following = tl.load(sorted_ptr + tl.minimum(place + 1, T - 1))
        if ends | (following != here):
            tl.store(partial_ptr + begin * N + columns, acc, mask=inside)
            acc = tl.zeros((BLOCK_N,), tl.float32)
            begin = place + 1


@kernel
def _sum_runs_kernel(
    sorted_ptr,  # (T) the ids in their order, int16 or int32
    partial_ptr,  # (T, N) fp32
    dtable_ptr,  # (V, N), zeros
    T,
    V,
    N,
    padding_idx,
    PARTS: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    place = tl.program_id(0).to(tl.int64)
    here = tl.load(sorted_ptr + place).to(tl.int64)
    before = tl.load(sorted_ptr + tl.maximum(place - 1, 0))
    if (place > 0) & (before == here):
        return
    if here == padding_idx:
        return
    if (here < 0) | (here >= V):  # an id out of range, whose z was NaN, has no row in the gradient
        return
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = columns < N
    acc = tl.load(partial_ptr + place * N + columns, mask=inside, other=0.0)
    chunk = (place // CHUNK + 1) * CHUNK
    goes_on = (chunk < T) & (tl.load(sorted_ptr + tl.minimum(chunk, T - 1)) == here)
    while goes_on:
        chunks = chunk + tl.arange(0, PARTS) * CHUNK
        same = (chunks < T) & (tl.load(sorted_ptr + chunks, mask=chunks < T, other=0) == here)
        mask = same[:, None] & inside[None, :]
        acc += tl.sum(tl.load(partial_ptr + chunks[:, None] * N + columns[None, :], mask=mask, other=0.0), 0)
        chunk += PARTS * CHUNK
        goes_on = (chunk < T) & (tl.load(sorted_ptr + tl.minimum(chunk, T - 1)) == here)
    tl.store(dtable_ptr + here * N + columns, acc.to(dtable_ptr.dtype.element_ty), mask=inside)


def _flags(columns: int, rng: Tensor | None) -> dict:
    block = next_power_of_2(max(columns, 8))
    return {"HAS_DROPOUT": rng is not None, "BLOCK_N": block, "num_warps": warps(block)}


def embedding_forward(ids, tables, weight, bias, eps, rng, site, threshold, scale, save):
    """ids: three (T) int64; tables: three (rows, N), one dtype -> out (T, N), z (T, N) fp32 if ``save``, mean, rstd (T)
    fp32."""
    tokens, columns = ids[0].numel(), tables[0].shape[1]
    out = torch.empty(tokens, columns, dtype=tables[0].dtype, device=tables[0].device)
    sizes = ((tokens, columns) if save else 0, tokens, tokens)
    total, mean, rstd = (torch.empty(size, dtype=torch.float32, device=out.device) for size in sizes)
    if tokens:
        _embedding_fwd_kernel[(tokens,)](
            *(*ids, *tables, *whole(weight, bias), out, total, mean, rstd, empty_rng(out) if rng is None else rng),
            *(*(table.shape[0] for table in tables), columns, eps, site, threshold, scale),
            **_flags(columns, rng),
            SAVE=save,
        )
    return out, total, mean, rstd


def embedding_backward(dout, total, weight, mean, rstd, rng, site, threshold, scale):
    """dout (T, N) contiguous, z (T, N) -> dz (T, N) in dout's dtype, dweight, dbias (N) fp32."""
    tokens, columns = dout.shape
    each = rows_per_program(tokens)
    programs = cdiv(tokens, each)
    dsum = torch.empty_like(dout)
    partial = torch.empty(programs, 2, columns, dtype=torch.float32, device=dout.device)
    if tokens:
        _embedding_bwd_kernel[(programs,)](
            *(dout, total.contiguous(), *whole(weight), mean, rstd, dsum, partial),
            *(empty_rng(dout) if rng is None else rng, tokens, columns, each, site, threshold, scale),
            **_flags(columns, rng),
        )
    return dsum, *sum_rows(partial, 2)


def table_gradient(dout: Tensor, ids: Tensor, rows: int, padding_idx: int | None = None) -> Tensor:
    """dout (T, N) contiguous, ids (T) int64 -> the gradient of a table of so many rows (V, N), dtype of dout."""
    tokens, columns = dout.shape
    dtable = torch.zeros(rows, columns, dtype=dout.dtype, device=dout.device)
    if tokens:
        # Narrow keys are sorted in fewer passes: 2 with 16 bits, 8 with 64. Ids out of range stay out of range.
        kind = torch.int16 if rows < 2**15 else torch.int32
        sorted_ids, order = torch.sort(ids.clamp(-1, rows).to(kind), stable=True)
        partial = torch.empty(tokens, columns, dtype=torch.float32, device=dout.device)
        blocks = cdiv(columns, 256)
        _sum_chunks_kernel[(cdiv(tokens, CHUNK.value), blocks)](
            dout, sorted_ids, order, partial, tokens, columns, BLOCK_N=256, num_warps=4
        )
        none = -1 if padding_idx is None else padding_idx
        _sum_runs_kernel[(tokens, blocks)](
            *(sorted_ids, partial, dtable, tokens, rows, columns, none), PARTS=PARTS, BLOCK_N=256, num_warps=4
        )
    return dtable
