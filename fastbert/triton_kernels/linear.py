"""The gradient of a dense layer's bias: sums the rows of the output's gradient, at the speed of reading them.

Each program writes one partial row, and a second kernel adds these up: without atomics, so the bits are always the
same.
"""

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor

from .common import MULTIPROCESSORS, cdiv, kernel, own_rows, rows_per_program
from .layer_norm import sum_rows


def sum_settings(columns: int) -> dict:
    """The tile, and the number of programs over which the rows are distributed. A thread reads 16 bytes of each of
    eight rows before it waits, so 32 warps of a multiprocessor (which holds more) wait for 128 KiB. All programs run at
    the same time.
    """
    block = next((width for width in (1024, 512) if columns % width == 0), 256)
    warps = block // 256
    programs = MULTIPROCESSORS * 32 // (warps * cdiv(columns, block))
    return {"BLOCK_M": 8, "BLOCK_N": block, "num_warps": warps, "INTERLEAVED": True, "programs": max(programs, 1)}


@kernel
def _partial_sums_kernel(
    x_ptr,  # (M, N)
    partial_ptr,  # (programs, N) fp32
    M,
    N,
    rows_each,
    INTERLEAVED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    program = tl.program_id(1).to(tl.int64)
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    acc = tl.zeros((1, BLOCK_N), tl.float32)
    first, last, step = own_rows(program, tl.num_programs(1), rows_each, M, BLOCK_M, INTERLEAVED)
    for begin in tl.range(first, last, step):
        rows = begin + tl.arange(0, BLOCK_M)[:, None]
        x = tl.load(x_ptr + rows * N + columns, mask=(rows < last) & (columns < N), other=0.0)
        acc += tl.sum(x.to(tl.float32), 0)[None, :]
    tl.store(partial_ptr + program * N + columns, acc, mask=columns < N)


def sum_over_rows(x: Tensor) -> Tensor:
    """x (M, N) contiguous -> (N) fp32."""
    rows, columns = x.shape
    settings = sum_settings(columns)
    each = rows_per_program(rows, settings.pop("programs"), settings["BLOCK_M"])
    programs = cdiv(rows, each)
    partial = torch.empty(programs, 1, columns, dtype=torch.float32, device=x.device)
    if rows:
        grid = (cdiv(columns, settings["BLOCK_N"]), programs)
        _partial_sums_kernel[grid](x, partial, rows, columns, each, **settings)
    return sum_rows(partial)[0]
