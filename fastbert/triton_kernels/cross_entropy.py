"""Softmax cross-entropy of gathered rows: reads the logits once forward and once backward, keeps three numbers a row.

loss = log sum exp(x) - x[label];   dx = dloss (softmax(x) - [column == label])

log sum exp(x) is kept as two numbers, the largest x and the rest: rounding their sum would cause an error of several
ulp in every probability.

Whole blocks of a row are loaded without a mask: a mask that ends at an arbitrary column, such as that of BERT's
vocabulary, would make loads narrow.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .common import cdiv, exp, kernel, log, next_power_of_2

_BLOCK = 2048


def forward_settings(columns: int, itemsize: int, aligned: bool = True) -> dict:
    """The launch settings of forward. A thread first takes the maximum of GROUP numbers, a load of 16 bytes, and then
    rescales its sum: this needs one additional exponential for all of them and not for each. A multiprocessor computes
    16 exponentials a cycle, and memory brings 13 numbers in bf16.
    Rows that are not ``aligned`` to 16 bytes are loaded number by number, with neighbouring ones in neighbouring
    threads.
    """
    group = 16 // itemsize if aligned else 1
    block = min(4096 if itemsize == 2 and aligned else 2048, max(next_power_of_2(columns), group))
    return {"BLOCK": block, "GROUP": group, "num_warps": 8}


@triton.jit
def _add_up(m, total, x, PRECISION: tl.constexpr):
    """The running maximum m and sum of exp(x - m), for each group of x (groups, GROUP)."""
    higher = tl.maximum(m, tl.max(x, 1))
    # A lane that has only seen -inf stays at zero.
    shift = tl.where(higher == float("-inf"), 0.0, higher)
    return higher, total * exp(m - shift, PRECISION) + tl.sum(exp(x - shift[:, None], PRECISION), 1)


@kernel
def _cross_entropy_fwd_kernel(
    logits_ptr,  # (M, N), rows stride_m apart
    labels_ptr,  # (M) int64
    loss_ptr,  # (M) fp32
    lse_ptr,  # (M, 2) fp32: the largest logit, and how far log sum exp is above it
    stride_m,
    N,
    ignore_index,
    BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
):
    PRECISION: tl.constexpr = "ieee" if logits_ptr.dtype.element_ty == tl.float32 else "tf32"
    row = tl.program_id(0).to(tl.int64)
    label = tl.load(labels_ptr + row)
    GROUPS: tl.constexpr = BLOCK // GROUP
    places = tl.arange(0, GROUPS)[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    m = tl.full((GROUPS,), float("-inf"), tl.float32)
    total = tl.zeros((GROUPS,), tl.float32)
    logits_ptr += row * stride_m
    whole = N // BLOCK * BLOCK
    for first in range(0, whole, BLOCK):
        m, total = _add_up(m, total, tl.load(logits_ptr + first + places).to(tl.float32), PRECISION)
    if whole < N:
        columns = whole + places
        x = tl.load(logits_ptr + columns, mask=columns < N, other=float("-inf")).to(tl.float32)
        m, total = _add_up(m, total, x, PRECISION)
    top = tl.max(m, 0)
    above = log(tl.sum(total * exp(m - top, PRECISION), 0), PRECISION)
    counts = label != ignore_index
    # With a label that is not a column, the loss is NaN, and no memory out of bounds is read.
    known = (label >= 0) & (label < N)
    x = tl.load(logits_ptr + label, mask=known, other=float("nan")).to(tl.float32)
    # Not lse - x: a loss near 0 would be lost by rounding lse.
    tl.store(loss_ptr + row, tl.where(counts, above + (top - x), 0.0))
    tl.store(lse_ptr + 2 * row, top)
    tl.store(lse_ptr + 2 * row + 1, above)


@triton.jit
def _gradient(x, columns, label, top, above, dloss, ignore_index, PRECISION: tl.constexpr):
    dx = dloss * (exp((x - top) - above, PRECISION) - tl.where(columns == label, 1.0, 0.0))
    # An ignored row is zero, whatever its logits are.
    return tl.where(label != ignore_index, dx, 0.0)


@kernel
def _cross_entropy_bwd_kernel(
    dloss_ptr,  # (M) fp32
    logits_ptr,  # (M, N), rows stride_m apart
    labels_ptr,  # (M) int64
    lse_ptr,  # (M, 2) fp32
    dlogits_ptr,  # (M, WIDTH), zeros from column N on
    stride_m,
    N,
    WIDTH,
    ignore_index,
    BLOCK: tl.constexpr,
):
    PRECISION: tl.constexpr = "ieee" if logits_ptr.dtype.element_ty == tl.float32 else "tf32"
    row = tl.program_id(0).to(tl.int64)
    label, top, above = tl.load(labels_ptr + row), tl.load(lse_ptr + 2 * row), tl.load(lse_ptr + 2 * row + 1)
    dloss = tl.where((label >= 0) & (label < N), tl.load(dloss_ptr + row), float("nan"))
    first = tl.program_id(1) * BLOCK
    columns = first + tl.arange(0, BLOCK)
    logits_ptr += row * stride_m
    dlogits_ptr += row * WIDTH
    if first + BLOCK <= N:
        x = tl.load(logits_ptr + columns).to(tl.float32)
        dx = _gradient(x, columns, label, top, above, dloss, ignore_index, PRECISION)
        tl.store(dlogits_ptr + columns, dx.to(dlogits_ptr.dtype.element_ty))
    else:
        x = tl.load(logits_ptr + columns, mask=columns < N, other=float("-inf")).to(tl.float32)
        dx = tl.where(columns < N, _gradient(x, columns, label, top, above, dloss, ignore_index, PRECISION), 0.0)
        tl.store(dlogits_ptr + columns, dx.to(dlogits_ptr.dtype.element_ty), mask=columns < WIDTH)


def cross_entropy_forward(logits: Tensor, labels: Tensor, ignore_index: int) -> tuple[Tensor, Tensor]:
    """logits (M, N), rows contiguous; labels (M) -> loss (M) fp32, 0 where ignored; log sum exp (M, 2) fp32."""
    rows, columns = logits.shape
    loss, lse = (torch.empty(size, dtype=torch.float32, device=logits.device) for size in ((rows,), (rows, 2)))
    if rows:
        aligned = logits.stride(0) * logits.element_size() % 16 == 0
        settings = forward_settings(columns, logits.element_size(), aligned)
        sizes = (logits.stride(0), columns, ignore_index)
        _cross_entropy_fwd_kernel[(rows,)](logits, labels, loss, lse, *sizes, **settings)
    return loss, lse


def cross_entropy_backward(dloss, logits, labels, lse, ignore_index: int, width: int | None = None) -> Tensor:
    """-> dlogits (M, N) contiguous, dtype of logits; or (M, ``width``), with zeros beyond column N."""
    rows, columns = logits.shape
    width = columns if width is None else width
    dlogits = torch.empty(rows, width, dtype=logits.dtype, device=logits.device)
    if rows:
        block = min(_BLOCK, next_power_of_2(width))
        grid = (rows, cdiv(width, block))
        _cross_entropy_bwd_kernel[grid](
            *(dloss, logits, labels, lse, dlogits, logits.stride(0), columns, width, ignore_index),
            BLOCK=block,
            num_warps=8,
        )
    return dlogits
