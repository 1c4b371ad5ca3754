"""Dropout alone, with one read and one write; backward is the same kernel with the same bits."""

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor

from .common import cdiv, keep_bits, kernel, whole


@kernel
def _dropout_kernel(
    x_ptr,  # (M, N)
    out_ptr,  # (M, N)
    rng_ptr,  # (2) int64
    numbers_ptr,  # (M) int64, the rows' numbers
    M,
    N,
    site,
    threshold,
    scale,
    NUMBERED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    rows = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    group = tl.program_id(1) * (BLOCK_N // 8)
    columns = group * 8 + tl.arange(0, BLOCK_N)[None, :]
    inside = (rows[:, None] < M) & (columns < N)
    at = rows[:, None] * N + columns
    x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
    seed, offset = tl.load(rng_ptr), tl.load(rng_ptr + 1)
    if NUMBERED:
        rows = tl.load(numbers_ptr + rows, mask=rows < M, other=0)
    keep = keep_bits(seed, offset, site, threshold, rows, group, BLOCK_M, BLOCK_N)
    tl.store(out_ptr + at, tl.where(keep, x * scale, 0.0).to(out_ptr.dtype.element_ty), mask=inside)


def dropout(x: Tensor, rng: Tensor, site: int, threshold: int, scale: float, numbers: Tensor | None = None) -> Tensor:
    """x (M, N) contiguous, the numbers (M,) of its rows or None for 0, 1, 2, ... -> the same."""
    rows, columns = x.shape
    out = torch.empty_like(x)
    if rows and columns:
        grid = (cdiv(rows, 4), cdiv(columns, 256))
        _dropout_kernel[grid](
            *(x, out, rng, *whole(rng if numbers is None else numbers), rows, columns, site, threshold, scale),
            NUMBERED=numbers is not None,
            BLOCK_M=4,
            BLOCK_N=256,
            num_warps=4,
        )
    return out
