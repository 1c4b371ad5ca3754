"""Softmax cross-entropy of gathered rows: reads the logits once forward and once backward, keeps two numbers a row.

loss = log sum exp(x) - x[label];   dx = dloss (softmax(x) - [column == label])

Blocks of whole rows are read under no mask: one that ends anywhere, as BERT's vocabulary does, keeps loads narrow.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .common import kernel

_BLOCK = 2048


def forward_settings(columns: int, itemsize: int) -> dict:
    """Of GROUP numbers, a load of 16 bytes, a thread takes the largest before it rescales its sum: one more power for
    all of them and not for each, of which a multiprocessor makes 16 a cycle and in bf16 memory brings 13 numbers.
    """
    group = 16 // itemsize
    block = min(4096 if itemsize == 2 else 2048, max(triton.next_power_of_2(columns), group))
    return {"BLOCK": block, "GROUP": group, "num_warps": 8}


@triton.jit
def _add_up(m, total, x):
    """The largest so far and the sum of exponentials below it, group by group of x (groups, GROUP)."""
    higher = tl.maximum(m, tl.max(x, 1))
    # A lane that has only seen -inf stays at zero.
    shift = tl.where(higher == float("-inf"), 0.0, higher)
    return higher, total * tl.exp(m - shift) + tl.sum(tl.exp(x - shift[:, None]), 1)


@kernel
def _cross_entropy_fwd_kernel(
    logits_ptr,  # (M, N), rows stride_m apart
    labels_ptr,  # (M) int64
    loss_ptr,  # (M) fp32
    lse_ptr,  # (M) fp32
    stride_m,
    N,
    ignore_index,
    BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    label = tl.load(labels_ptr + row)
    GROUPS: tl.constexpr = BLOCK // GROUP
    places = tl.arange(0, GROUPS)[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    m = tl.full((GROUPS,), float("-inf"), tl.float32)
    total = tl.zeros((GROUPS,), tl.float32)
    logits_ptr += row * stride_m
    whole = N // BLOCK * BLOCK
    for first in range(0, whole, BLOCK):
        m, total = _add_up(m, total, tl.load(logits_ptr + first + places).to(tl.float32))
    if whole < N:
        columns = whole + places
        x = tl.load(logits_ptr + columns, mask=columns < N, other=float("-inf")).to(tl.float32)
        m, total = _add_up(m, total, x)
    top = tl.max(m, 0)
    above = tl.log(tl.sum(total * tl.exp(m - top), 0))
    counts = label != ignore_index
    # Of a label that is no column the loss is NaN, in place of memory that is not ours.
    known = (label >= 0) & (label < N)
    x = tl.load(logits_ptr + label, mask=known, other=float("nan")).to(tl.float32)
    # Not lse - x: a loss near 0 would be lost in the rounding of lse.
    tl.store(loss_ptr + row, tl.where(counts, above + (top - x), 0.0))
    tl.store(lse_ptr + row, top + above)


@triton.jit
def _gradient(x, columns, label, lse, dloss, ignore_index):
    dx = dloss * (tl.exp(x - lse) - tl.where(columns == label, 1.0, 0.0))
    # An ignored row is zero, whatever its logits are.
    return tl.where(label != ignore_index, dx, 0.0)


@kernel
def _cross_entropy_bwd_kernel(
    dloss_ptr,  # (M) fp32
    logits_ptr,  # (M, N), rows stride_m apart
    labels_ptr,  # (M) int64
    lse_ptr,  # (M) fp32
    dlogits_ptr,  # (M, WIDTH), zeros from column N on
    stride_m,
    N,
    WIDTH,
    ignore_index,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    label, lse = tl.load(labels_ptr + row), tl.load(lse_ptr + row)
    dloss = tl.where((label >= 0) & (label < N), tl.load(dloss_ptr + row), float("nan"))
    first = tl.program_id(1) * BLOCK
    columns = first + tl.arange(0, BLOCK)
    logits_ptr += row * stride_m
    dlogits_ptr += row * WIDTH
    if first + BLOCK <= N:
        x = tl.load(logits_ptr + columns).to(tl.float32)
        dx = _gradient(x, columns, label, lse, dloss, ignore_index)
        tl.store(dlogits_ptr + columns, dx.to(dlogits_ptr.dtype.element_ty))
    else:
        x = tl.load(logits_ptr + columns, mask=columns < N, other=float("-inf")).to(tl.float32)
        dx = tl.where(columns < N, _gradient(x, columns, label, lse, dloss, ignore_index), 0.0)
        tl.store(dlogits_ptr + columns, dx.to(dlogits_ptr.dtype.element_ty), mask=columns < WIDTH)


def cross_entropy_forward(logits: Tensor, labels: Tensor, ignore_index: int) -> tuple[Tensor, Tensor]:
    """logits (M, N), rows contiguous; labels (M) -> loss (M) fp32, 0 where ignored; log sum exp (M) fp32."""
    rows, columns = logits.shape
    loss, lse = (torch.empty(rows, dtype=torch.float32, device=logits.device) for _ in range(2))
    if rows:
        settings = forward_settings(columns, logits.element_size())
        sizes = (logits.stride(0), columns, ignore_index)
        _cross_entropy_fwd_kernel[(rows,)](logits, labels, loss, lse, *sizes, **settings)
    return loss, lse


def cross_entropy_backward(dloss, logits, labels, lse, ignore_index: int, width: int | None = None) -> Tensor:
    """-> dlogits (M, N) contiguous, dtype of logits; or (M, ``width``), with zeros beyond column N."""
    rows, columns = logits.shape
    width = columns if width is None else width
    dlogits = torch.empty(rows, width, dtype=logits.dtype, device=logits.device)
    if rows:
        block = min(_BLOCK, triton.next_power_of_2(width))
        grid = (rows, triton.cdiv(width, block))
        _cross_entropy_bwd_kernel[grid](
            *(dloss, logits, labels, lse, dlogits, logits.stride(0), columns, width, ignore_index),
            BLOCK=block,
            num_warps=8,
        )
    return dlogits
