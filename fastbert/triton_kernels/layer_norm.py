"""LN(residual + dropout(x + x_bias)) (Ba et al. 2016; Vaswani et al. 2017, section 5.4), forward and backward.

    z = residual + dropout(x + x_bias);  out = (z - mean) rstd weight + bias
    g = dout weight;  dz = rstd (g - mean(g) - zhat mean(g zhat));  dresidual = dz;  dx = dropout(dz), the same bits
    dweight = sum dout zhat;  dbias = sum dout;  dx_bias = sum dx

Forward reads x and residual and writes out and, for training, z: eight bytes an element in bf16; with a slot
(fastbert.fp8) also out in 8 bits, for the next products. Backward reads dout and z and writes dx and, with dropout,
dresidual. A row is in one tile, so its sums stay within a program. For the sums over rows each program writes one
partial row, and a second kernel adds these up: without atomics, so the bits are always the same.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..fp8 import LANES, LARGEST, Slot
from .common import (
    MULTIPROCESSORS,
    cdiv,
    differences,
    empty_rng,
    keep_bits,
    kernel,
    next_power_of_2,
    note_largest,
    own_rows,
    rows_per_program,
    to_fp8,
    whole,
)

# The number of warps, by the width of a row's tile.
_WARPS = {1024: 4, 2048: 8, 4096: 8, 8192: 16}


def warps(block: int) -> int:
    return next((count for width, count in _WARPS.items() if block <= width), 16)


def forward_settings(columns: int) -> dict:
    """Forward's tile: up to 1024 columns a warp. Every thread executes the instructions that a row needs besides those
    for its elements (sums over the warp, quotients, the square root). With four warps a row these were half of all
    instructions, and the kernel was limited by instructions and not by memory.
    """
    block = next_power_of_2(max(columns, 8))
    return {"BLOCK_M": 1, "BLOCK_N": block, "num_warps": min(max(block // 1024, 1), 16)}


def backward_settings(columns: int) -> dict:
    """Backward's tile, and the number of programs over which the rows are distributed. A thread has 16 columns of a row
    and their three sums over rows: more would not fit into its registers, and with fewer the overhead of a row would be
    larger. A multiprocessor then holds 12 warps; the number of programs is such that all run at the same time.
    """
    block = next_power_of_2(max(columns, 8))
    warps = min(max(block // 512, 1), 16)
    tile = {"BLOCK_M": 1, "BLOCK_N": block, "num_warps": warps}
    return {**tile, "INTERLEAVED": True, "programs": MULTIPROCESSORS * 12 // warps}


@triton.jit
def _mean(x, N):
    """The mean of each row of a tile that is zero beyond column N. A GPU's own quotient has an error of 2 ulp, and a
    correctly rounded one takes every thread some ten instructions a row. Here the inverse is computed once; a product
    by it, corrected with the remainder, is the correctly rounded quotient (Markstein 1990).
    """
    total, count = tl.sum(x, 1), tl.full((1,), N, tl.float32)
    inverse = tl.div_rn(1.0, count)
    near = total * inverse
    return tl.fma(tl.fma(-near, count, total), inverse, near)


@triton.jit
def normalised(z, columns, N, eps, weight_ptr, bias_ptr):
    """LN(z) of rows that are zero beyond column N, with their mean and rstd; all fp32."""
    inside = columns < N
    mean = _mean(z, N)
    centred = tl.where(inside, z - mean[:, None], 0.0)
    rstd = tl.div_rn(1.0, tl.sqrt_rn(_mean(centred * centred, N) + eps))
    weight = tl.load(weight_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    return centred * rstd[:, None] * weight + bias, mean, rstd


@triton.jit
def sum_gradient(dout, z, mean, rstd, weight, inside, N):
    """dz and zhat of a row, or of rows with mean and rstd (M, 1). Beyond column N dz is undefined, zhat is zero."""
    normal = tl.where(inside, (z - mean) * rstd, 0.0)
    g = dout * weight
    mean_g = _mean(g, N)[:, None]
    mean_gz = _mean(g * normal, N)[:, None]
    return rstd * (g - mean_g - normal * mean_gz), normal


@kernel
def _layer_norm_fwd_kernel(
    x_ptr,  # (M, N)
    x_bias_ptr,  # (N)
    residual_ptr,  # (M, N)
    weight_ptr,  # (N)
    bias_ptr,  # (N)
    out_ptr,  # (M, N)
    sum_ptr,  # (M, N), z
    mean_ptr,  # (M) fp32
    rstd_ptr,  # (M) fp32
    rng_ptr,  # (2) int64: seed, offset
    numbers_ptr,  # (M) int64, the rows' numbers in the random stream
    data_ptr,  # (M, N) 8 bits of out
    slot_scale_ptr,  # (1)
    maxima_ptr,  # (LANES) int32
    M,
    N,
    eps,
    site,
    threshold,
    scale,
    HAS_X_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    HAS_DROPOUT: tl.constexpr,
    NUMBERED: tl.constexpr,
    SAVE_SUM: tl.constexpr,
    LIMIT: tl.constexpr,
    LANES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    rows = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.arange(0, BLOCK_N)[None, :]
    inside = (rows[:, None] < M) & (columns < N)
    at = rows[:, None] * N + columns
    z = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
    if HAS_X_BIAS:
        z += tl.load(x_bias_ptr + columns, mask=columns < N, other=0.0).to(tl.float32)
    if HAS_DROPOUT:
        seed, offset = tl.load(rng_ptr), tl.load(rng_ptr + 1)
        numbers = tl.load(numbers_ptr + rows, mask=rows < M, other=0) if NUMBERED else rows
        keep = keep_bits(seed, offset, site, threshold, numbers, 0, BLOCK_M, BLOCK_N)
        z = tl.where(keep, z * scale, 0.0)
    if HAS_RESIDUAL:
        z += tl.load(residual_ptr + at, mask=inside, other=0.0).to(tl.float32)
    if SAVE_SUM:
        tl.store(sum_ptr + at, z.to(sum_ptr.dtype.element_ty), mask=inside)
    out, mean, rstd = normalised(z, columns, N, eps, weight_ptr, bias_ptr)
    out = out.to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + at, out, mask=inside)
    if LIMIT > 0:
        wide = tl.where(inside, out.to(tl.float32), 0.0)  # rows past the end are the bias
        note_largest(maxima_ptr, wide, LANES)
        data = to_fp8(wide, tl.load(slot_scale_ptr), LIMIT, data_ptr.dtype.element_ty)
        tl.store(data_ptr + at, data, mask=inside)
    tl.store(mean_ptr + rows, mean, mask=rows < M)
    tl.store(rstd_ptr + rows, rstd, mask=rows < M)


@kernel
def _layer_norm_bwd_kernel(
    dout_ptr,  # (M, N)
    sum_ptr,  # (M, N)
    mean_ptr,  # (M)
    rstd_ptr,  # (M)
    weight_ptr,  # (N)
    dx_ptr,  # (M, N)
    dresidual_ptr,  # (M, N)
    partial_ptr,  # (programs, 3, N) fp32: dweight, dbias, dx_bias
    rng_ptr,
    numbers_ptr,  # (M) int64
    M,
    N,
    rows_each,
    site,
    threshold,
    scale,
    HAS_X_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    HAS_DROPOUT: tl.constexpr,
    NUMBERED: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    program = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK_N)[None, :]
    first, last, step = own_rows(program, tl.num_programs(0), rows_each, M, BLOCK_M, INTERLEAVED)
    # Rows are loaded while those before them are computed. The first load comes before the weight's: Triton takes the
    # layout of the first load for the tile and converts the other.
    rows = first + tl.arange(0, BLOCK_M)
    inside = (rows[:, None] < last) & (columns < N)
    next_dout = tl.load(dout_ptr + rows[:, None] * N + columns, mask=inside, other=0.0)
    next_z = tl.load(sum_ptr + rows[:, None] * N + columns, mask=inside, other=0.0)
    next_mean = tl.load(mean_ptr + rows, mask=rows < last, other=0.0)
    next_rstd = tl.load(rstd_ptr + rows, mask=rows < last, other=0.0)
    weight = tl.load(weight_ptr + columns, mask=columns < N, other=0.0).to(tl.float32)
    dweight = tl.zeros((1, BLOCK_N), tl.float32)
    dbias = tl.zeros((1, BLOCK_N), tl.float32)
    dx_bias = tl.zeros((1, BLOCK_N), tl.float32)
    if HAS_DROPOUT:
        seed, offset = tl.load(rng_ptr), tl.load(rng_ptr + 1)
    for begin in tl.range(first, last, step):
        rows = begin + tl.arange(0, BLOCK_M)
        inside = (rows[:, None] < last) & (columns < N)
        at = rows[:, None] * N + columns
        dout, z = next_dout.to(tl.float32), next_z.to(tl.float32)
        mean, rstd = next_mean[:, None], next_rstd[:, None]
        after = rows + step
        there = (after[:, None] < last) & (columns < N)
        next_dout = tl.load(dout_ptr + after[:, None] * N + columns, mask=there, other=0.0)
        next_z = tl.load(sum_ptr + after[:, None] * N + columns, mask=there, other=0.0)
        next_mean = tl.load(mean_ptr + after, mask=after < last, other=0.0)
        next_rstd = tl.load(rstd_ptr + after, mask=after < last, other=0.0)
        dz, normal = sum_gradient(dout, z, mean, rstd, weight, columns < N, N)
        dx = dz
        if HAS_DROPOUT:
            if HAS_RESIDUAL:
                tl.store(dresidual_ptr + at, dz.to(dresidual_ptr.dtype.element_ty), mask=inside)
            numbers = tl.load(numbers_ptr + rows, mask=rows < last, other=0) if NUMBERED else rows
            keep = keep_bits(seed, offset, site, threshold, numbers, 0, BLOCK_M, BLOCK_N)
            dx = tl.where(keep, dz * scale, 0.0)
        tl.store(dx_ptr + at, dx.to(dx_ptr.dtype.element_ty), mask=inside)
        dweight += tl.sum(dout * normal, 0)[None, :]
        dbias += tl.sum(dout, 0)[None, :]
        if HAS_X_BIAS:
            dx_bias += tl.sum(dx, 0)[None, :]
    partial = partial_ptr + program * 3 * N + columns
    tl.store(partial, dweight, mask=columns < N)
    tl.store(partial + N, dbias, mask=columns < N)
    if HAS_X_BIAS:
        tl.store(partial + 2 * N, dx_bias, mask=columns < N)


@kernel
def sum_rows_kernel(
    partial_ptr,  # (M, parts, N) fp32
    first_ptr,  # (N) fp32, the sums of the first part
    second_ptr,
    third_ptr,
    M,
    N,
    stride_m,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Sums each part over its rows, in a fixed order."""
    part = tl.program_id(1)
    out_ptr = first_ptr
    if part == 1:
        out_ptr = second_ptr
    if part == 2:
        out_ptr = third_ptr
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    partial_ptr += part * N
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for first in tl.range(0, M, BLOCK_M, num_stages=4):
        rows = first + tl.arange(0, BLOCK_M)
        inside = (rows[:, None] < M) & (columns[None, :] < N)
        acc += tl.load(partial_ptr + rows[:, None].to(tl.int64) * stride_m + columns[None, :], mask=inside, other=0.0)
    tl.store(out_ptr + columns, tl.sum(acc, 0), mask=columns < N)


# Few columns and many rows a program: the sum waits for memory each time a program goes on to further rows.
SUM_ROWS = {"BLOCK_M": 128, "BLOCK_N": 32, "num_warps": 4}


def sum_rows(partial: Tensor, parts: int = 1) -> list[Tensor]:
    """(M, at least parts, N) fp32 contiguous -> for each part its sum over M, (N) fp32; at most three."""
    rows, _, columns = partial.shape
    out = [torch.empty(columns, dtype=torch.float32, device=partial.device) for _ in range(parts)]
    grid = (cdiv(columns, SUM_ROWS["BLOCK_N"]), parts)
    sum_rows_kernel[grid](partial, *(out * 3)[:3], rows, columns, partial.stride(0), **SUM_ROWS)
    return out


def layer_norm_forward(
    x,
    weight,
    bias,
    eps,
    x_bias,
    residual,
    rng,
    site,
    threshold,
    scale,
    save,
    slot: Slot | None = None,
    numbers: Tensor | None = None,
):
    """x, residual (M, N) contiguous -> out, z or empty, mean, rstd; with a slot also the 8 bits of out.

    ``numbers`` (M,) are those of the rows in the random stream; None for 0, 1, 2, ...
    """
    rows, columns = x.shape
    weight, bias, x_bias, numbers = whole(weight, bias, x_bias, numbers)
    out = torch.empty_like(x)
    total = torch.empty_like(x) if save else x.new_empty(0)
    mean, rstd = (torch.empty(rows, dtype=torch.float32, device=x.device) for _ in range(2))
    data = [] if slot is None else [x.new_empty(rows, columns, dtype=slot.kind)]
    casts = (out, mean, mean) if slot is None else (*data, slot.scale, slot.maxima)
    settings = forward_settings(columns)
    state = empty_rng(x) if rng is None else rng
    if rows:
        _layer_norm_fwd_kernel[(cdiv(rows, settings["BLOCK_M"]),)](
            *(x, x if x_bias is None else x_bias, x if residual is None else residual, weight, bias),
            *(out, total, mean, rstd, state, state if numbers is None else numbers, *casts),
            *(rows, columns, eps, site, threshold, scale),
            HAS_X_BIAS=x_bias is not None,
            HAS_RESIDUAL=residual is not None,
            HAS_DROPOUT=rng is not None,
            NUMBERED=numbers is not None,
            SAVE_SUM=save,
            LIMIT=0.0 if slot is None else LARGEST[slot.kind],
            LANES=LANES,
            **settings,
            **differences(x),
        )
    return out, total, mean, rstd, *data


def layer_norm_backward(
    dout, total, mean, rstd, weight, rng, site, threshold, scale, has_residual, has_x_bias, numbers=None
):
    """-> dx, dresidual (empty without dropout: dx then), dweight, dbias, dx_bias (or empty), the last three fp32."""
    rows, columns = dout.shape
    settings = backward_settings(columns)
    each = rows_per_program(rows, settings.pop("programs"), settings["BLOCK_M"])
    programs = cdiv(rows, each)
    dx = torch.empty_like(dout)
    dresidual = torch.empty_like(dout) if rng is not None and has_residual else dout.new_empty(0)
    partial = torch.empty(programs, 3, columns, dtype=torch.float32, device=dout.device)
    weight, numbers = whole(weight, numbers)
    state = empty_rng(dout) if rng is None else rng
    if rows:
        _layer_norm_bwd_kernel[(programs,)](
            *(dout, total, mean, rstd, weight, dx, dresidual, partial, state, state if numbers is None else numbers),
            *(rows, columns, each, site, threshold, scale),
            HAS_X_BIAS=has_x_bias,
            HAS_RESIDUAL=has_residual,
            HAS_DROPOUT=rng is not None,
            NUMBERED=numbers is not None,
            **settings,
            **differences(dout),
        )
    sums = sum_rows(partial, 3 if has_x_bias else 2)
    return dx, dresidual, *sums, *([] if has_x_bias else [partial.new_empty(0)])
