"""The gradient of a table of embeddings, without atomics: tokens are sorted by id and each run of one id is summed.

Stage one sums runs within chunks of 32 sorted tokens, each into the place of its first token; stage two, at the first
token of every run, adds up the parts of its later chunks. A run of n tokens is so n / 32 additions deep, which matters
for segment ids (two of them) and [MASK].
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

CHUNK = tl.constexpr(32)


@triton.jit
def _sum_chunks_kernel(
    dout_ptr,  # (T, N)
    ids_ptr,  # (T) int64, sorted
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
        here = tl.load(ids_ptr + place)
        token = tl.load(order_ptr + place)
        acc += tl.load(dout_ptr + token * N + columns, mask=inside, other=0.0).to(tl.float32)
        ends = place + 1 == tl.minimum(first + CHUNK, T)
        following = tl.load(ids_ptr + tl.minimum(place + 1, T - 1))
        if ends | (following != here):
            tl.store(partial_ptr + begin * N + columns, acc, mask=inside)
            acc = tl.zeros((BLOCK_N,), tl.float32)
            begin = place + 1


@triton.jit
def _sum_runs_kernel(
    ids_ptr,  # (T) int64, sorted
    partial_ptr,  # (T, N) fp32
    dtable_ptr,  # (V, N), zeros
    T,
    N,
    padding_idx,
    BLOCK_N: tl.constexpr,
):
    place = tl.program_id(0).to(tl.int64)
    here = tl.load(ids_ptr + place)
    before = tl.load(ids_ptr + tl.maximum(place - 1, 0))
    if (place > 0) & (before == here):
        return
    if here == padding_idx:
        return
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = columns < N
    acc = tl.load(partial_ptr + place * N + columns, mask=inside, other=0.0)
    chunk = (place // CHUNK + 1) * CHUNK
    same = (chunk < T) & (tl.load(ids_ptr + tl.minimum(chunk, T - 1)) == here)
    while same:
        acc += tl.load(partial_ptr + chunk * N + columns, mask=inside, other=0.0)
        chunk += CHUNK
        same = (chunk < T) & (tl.load(ids_ptr + tl.minimum(chunk, T - 1)) == here)
    tl.store(dtable_ptr + here * N + columns, acc.to(dtable_ptr.dtype.element_ty), mask=inside)


def table_gradient(dout: Tensor, ids: Tensor, table: Tensor, padding_idx: int | None = None) -> Tensor:
    """dout (T, N) contiguous, ids (T) int64 -> the gradient of table (V, N), dtype of the table."""
    tokens, columns = dout.shape
    dtable = torch.zeros(table.shape, dtype=table.dtype, device=table.device)
    if tokens:
        sorted_ids, order = torch.sort(ids, stable=True)
        partial = torch.empty(tokens, columns, dtype=torch.float32, device=dout.device)
        blocks = triton.cdiv(columns, 256)
        _sum_chunks_kernel[(triton.cdiv(tokens, CHUNK.value), blocks)](
            dout, sorted_ids, order, partial, tokens, columns, BLOCK_N=256, num_warps=4
        )
        none = -1 if padding_idx is None else padding_idx
        _sum_runs_kernel[(tokens, blocks)](sorted_ids, partial, dtable, tokens, columns, none, BLOCK_N=256, num_warps=4)
    return dtable
