"""Tensors in 8-bit floats (fastbert.fp8): casts, transposes, and GELU with 8-bit results.

    data = x scale in e4m3 or e5m2;  across = data transposed: products take operands contiguous in the summed index

A cast reads two bytes an element and writes one, or two with the transpose. GELU forward and backward write 8 bits in
place of 16, so that between the two products of a feed-forward block only the GELU's input exists in 16 bits. Rows of
``across`` are padded with zeros to a multiple of 16 bytes. Results are first rounded to the dtype of the input, so the
bits are those of a cast after the plain op.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..fp8 import ALIGNMENT, LANES, LARGEST, Slot
from .common import cdiv, kernel, note_largest, to_fp8, whole
from .gelu import _gelu, _gelu_slope
from .layer_norm import sum_rows

# A square tile of bytes: 64 of them are two sectors of memory, along rows and across them. On an H200, tiles of 32 and
# 128 and other numbers of warps are slower, except for the transpose alone.
BLOCK = 64


@triton.jit
def _place(BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Rows (BLOCK_M, 1) and columns (1, BLOCK_N) of this program's tile."""
    rows = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    return rows, tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]


@triton.jit
def _store_across(across_ptr, turned, rows, columns, N, M_up):
    """Stores a transposed tile of 8 bits, including the zeros beyond the last row with which rows are padded."""
    at = tl.trans(columns).to(tl.int64) * M_up + tl.trans(rows)
    tl.store(across_ptr + at, turned, mask=(tl.trans(columns) < N) & (tl.trans(rows) < M_up))


@triton.jit
def _store_casts(
    data_ptr, across_ptr, slot_scale_ptr, maxima_ptr, x, rows, columns, inside, N, M_up,
    ACROSS: tl.constexpr, LIMIT: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Stores a tile x of fp32, zero outside, in 8 bits and, if ACROSS, transposed; records its largest magnitude."""
    note_largest(maxima_ptr, x, LANES)
    data = to_fp8(x, tl.load(slot_scale_ptr), LIMIT, data_ptr.dtype.element_ty)
    tl.store(data_ptr + rows * N + columns, data, mask=inside)
    if ACROSS:
        # Cast a second time, and not the tile above transposed: up to CUDA 12.9, NVIDIA's assembler reads registers too
        # early if one cast is packed into words for one store and unpacked for another
        # (github.com/triton-lang/triton/issues/11111). The scale is read by a volatile load, so that the compilers
        # cannot merge the two casts.
        turned = to_fp8(tl.trans(x), tl.load(slot_scale_ptr, volatile=True), LIMIT, across_ptr.dtype.element_ty)
        _store_across(across_ptr, turned, rows, columns, N, M_up)


@kernel
def _cast_kernel(
    x_ptr,  # (M, N)
    data_ptr,  # (M, N) 8 bits
    across_ptr,  # (N, M_up) 8 bits
    partial_ptr,  # (row blocks, N) fp32
    slot_scale_ptr,  # (1)
    maxima_ptr,  # (LANES) int32
    M,
    N,
    M_up,
    LIMIT: tl.constexpr,
    ACROSS: tl.constexpr,
    HAS_SUM: tl.constexpr,
    LANES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    rows, columns = _place(BLOCK_M, BLOCK_N)
    inside = (rows < M) & (columns < N)
    x = tl.load(x_ptr + rows * N + columns, mask=inside, other=0.0).to(tl.float32)
    _store_casts(
        data_ptr, across_ptr, slot_scale_ptr, maxima_ptr, x, rows, columns, inside, N, M_up, ACROSS, LIMIT, LANES
    )
    if HAS_SUM:
        sums = tl.sum(x, 0)[None, :]
        tl.store(partial_ptr + tl.program_id(0).to(tl.int64) * N + columns, sums, mask=columns < N)


@kernel
def _transpose_kernel(
    data_ptr,  # (M, N) 8 bits
    across_ptr,  # (N, M_up)
    M,
    N,
    M_up,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    rows, columns = _place(BLOCK_M, BLOCK_N)
    data = tl.load(data_ptr + rows * N + columns, mask=(rows < M) & (columns < N), other=0)
    _store_across(across_ptr, tl.trans(data), rows, columns, N, M_up)


@kernel
def _gelu_cast_kernel(
    x_ptr,  # (M, N)
    bias_ptr,  # (N)
    data_ptr,  # (M, N) 8 bits
    across_ptr,  # (N, M_up) 8 bits
    slot_scale_ptr,
    maxima_ptr,
    M,
    N,
    M_up,
    TANH: tl.constexpr,
    LIMIT: tl.constexpr,
    LANES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    rows, columns = _place(BLOCK_M, BLOCK_N)
    EXACT: tl.constexpr = x_ptr.dtype.element_ty == tl.float32
    inside = (rows < M) & (columns < N)
    x = tl.load(x_ptr + rows * N + columns, mask=inside, other=0.0).to(tl.float32)
    x += tl.load(bias_ptr + columns, mask=columns < N, other=0.0).to(tl.float32)
    # Rows past the end are the bias here.
    hidden = tl.where(inside, _gelu(x, TANH, EXACT), 0.0).to(x_ptr.dtype.element_ty).to(tl.float32)
    _store_casts(
        data_ptr, across_ptr, slot_scale_ptr, maxima_ptr, hidden, rows, columns, inside, N, M_up, True, LIMIT, LANES
    )


@kernel
def _gelu_bwd_cast_kernel(
    dout_ptr,  # (M, N)
    x_ptr,  # (M, N)
    bias_ptr,  # (N)
    data_ptr,  # (M, N) 8 bits, the gradient of x
    across_ptr,  # (N, M_up) 8 bits
    partial_ptr,  # (row blocks, N) fp32
    slot_scale_ptr,
    maxima_ptr,
    M,
    N,
    M_up,
    TANH: tl.constexpr,
    LIMIT: tl.constexpr,
    LANES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    rows, columns = _place(BLOCK_M, BLOCK_N)
    EXACT: tl.constexpr = x_ptr.dtype.element_ty == tl.float32
    inside = (rows < M) & (columns < N)
    x = tl.load(x_ptr + rows * N + columns, mask=inside, other=0.0).to(tl.float32)
    x += tl.load(bias_ptr + columns, mask=columns < N, other=0.0).to(tl.float32)
    dout = tl.load(dout_ptr + rows * N + columns, mask=inside, other=0.0).to(tl.float32)
    dx = dout * _gelu_slope(x, TANH, EXACT)
    sums = tl.sum(dx, 0)[None, :]
    tl.store(partial_ptr + tl.program_id(0).to(tl.int64) * N + columns, sums, mask=columns < N)
    dx = dx.to(x_ptr.dtype.element_ty).to(tl.float32)
    _store_casts(
        data_ptr, across_ptr, slot_scale_ptr, maxima_ptr, dx, rows, columns, inside, N, M_up, True, LIMIT, LANES
    )


def _grid(rows: int, columns: int) -> tuple[int, int]:
    return cdiv(rows, BLOCK), cdiv(columns, BLOCK)


def _up(rows: int) -> int:
    return cdiv(rows, ALIGNMENT) * ALIGNMENT


def _outputs(x: Tensor, kind: torch.dtype) -> tuple[Tensor, Tensor]:
    """For x (M, N): (M, N) and (N, M_up)."""
    rows, columns = x.shape
    return x.new_empty(rows, columns, dtype=kind), x.new_empty(columns, _up(rows), dtype=kind)


def cast(
    x: Tensor, slot: Slot, *, across: bool = False, sums: bool = False, out: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """x (M, N) contiguous -> its 8 bits and, if asked for, their transpose and the sum of x over rows (N,) fp32."""
    rows, columns = x.shape
    if out is not None:
        data, turned = out
    elif across:
        data, turned = _outputs(x, slot.kind)
    else:
        data, turned = x.new_empty(rows, columns, dtype=slot.kind), None
    blocks = cdiv(rows, BLOCK)
    partial = torch.empty(blocks, 1, columns if sums else 0, dtype=torch.float32, device=x.device)
    if rows:
        _cast_kernel[_grid(rows, columns)](
            *(x, data, data if turned is None else turned, partial, slot.scale, slot.maxima),
            *(rows, columns, _up(rows)),
            LIMIT=LARGEST[slot.kind],
            ACROSS=turned is not None,
            HAS_SUM=sums,
            LANES=LANES,
            BLOCK_M=BLOCK,
            BLOCK_N=BLOCK,
            num_warps=4,
        )
    return data, turned, sum_rows(partial)[0] if sums else None


def transpose(data: Tensor) -> Tensor:
    """8 bits (M, N) -> (N, M_up)."""
    rows, columns = data.shape
    across = data.new_empty(columns, _up(rows))
    if rows:
        _transpose_kernel[_grid(rows, columns)](
            *(data.view(torch.uint8), across.view(torch.uint8), rows, columns, _up(rows)),
            BLOCK_M=BLOCK,
            BLOCK_N=BLOCK,
            num_warps=4,
        )
    return across


def gelu_cast(x: Tensor, bias: Tensor, tanh: bool, slot: Slot) -> tuple[Tensor, Tensor]:
    """gelu(x + bias) in 8 bits, (M, N), and its transpose."""
    rows, columns = x.shape
    data, across = _outputs(x, slot.kind)
    if rows:
        _gelu_cast_kernel[_grid(rows, columns)](
            *(x, *whole(bias), data, across, slot.scale, slot.maxima, rows, columns, _up(rows)),
            TANH=tanh,
            LIMIT=LARGEST[slot.kind],
            LANES=LANES,
            BLOCK_M=BLOCK,
            BLOCK_N=BLOCK,
            num_warps=4,
        )
    return data, across


def gelu_backward_cast(dout: Tensor, x: Tensor, bias: Tensor, tanh: bool, slot: Slot) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient of x in 8 bits (M, N), its transpose, and the gradient of the bias (N,) fp32."""
    rows, columns = x.shape
    data, across = _outputs(x, slot.kind)
    partial = torch.empty(cdiv(rows, BLOCK), 1, columns, dtype=torch.float32, device=x.device)
    if rows:
        _gelu_bwd_cast_kernel[_grid(rows, columns)](
            *(dout, x, *whole(bias), data, across, partial, slot.scale, slot.maxima, rows, columns, _up(rows)),
            TANH=tanh,
            LIMIT=LARGEST[slot.kind],
            LANES=LANES,
            BLOCK_M=BLOCK,
            BLOCK_N=BLOCK,
            num_warps=4,
        )
    return data, across, sum_rows(partial)[0]
