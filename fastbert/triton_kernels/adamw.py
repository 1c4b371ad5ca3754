"""AdamW (Loshchilov & Hutter 2019), p -= lr u, over the tables of optimizer.py, with a launch per kind of element."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from .common import kernel
from .optimizer import (
    GRAD,
    LR,
    RATES,
    Tables,
    advance,
    block,
    part,
    pointer,
    states,
    whole_blocks,
    write,
)


@triton.jit
def _adamw_block(
    pointers, first, size, scale, rates, HAS_MASTER: tl.constexpr, WHOLE: tl.constexpr, BLOCK: tl.constexpr
):
    param_ptr, grad_ptr, master_ptr, first_ptr, second_ptr = pointers
    at, inside = block(first, size, WHOLE, BLOCK)
    p = tl.load(master_ptr + at, mask=inside, other=0.0)
    u = advance(grad_ptr, first_ptr, second_ptr, at, inside, scale, p, rates)
    write(param_ptr, master_ptr, at, inside, p - tl.load(rates + LR) * u, HAS_MASTER)


@kernel
def _adamw_kernel(
    places_ptr,  # (tensors, PLACES) int64
    rates_ptr,  # (tensors, RATES) fp32
    chunks_ptr,  # (chunks, 2) int32
    control_ptr,  # (3) fp32
    first_chunk,
    PARAM_TYPE: tl.constexpr,
    GRAD_TYPE: tl.constexpr,
    HAS_MASTER: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    if tl.load(control_ptr + 2) == 0.0:
        return
    scale = tl.load(control_ptr + 1)
    chunk = first_chunk + tl.program_id(0)
    tensor, begin, size = part(places_ptr, chunks_ptr, chunk)
    rates = rates_ptr + tensor * RATES
    param_ptr, master_ptr, first_ptr, second_ptr = states(places_ptr, tensor, PARAM_TYPE, ALIGNED)
    grad_ptr = pointer(places_ptr, tensor, GRAD, GRAD_TYPE, ALIGNED)
    whole, end = whole_blocks(begin, size, BLOCK)
    pointers = (param_ptr, grad_ptr, master_ptr, first_ptr, second_ptr)
    for first in range(begin, whole, BLOCK):
        _adamw_block(pointers, first, size, scale, rates, HAS_MASTER, True, BLOCK)
    if whole < end:
        _adamw_block(pointers, whole, size, scale, rates, HAS_MASTER, False, BLOCK)


def adamw(tables: Tables, control: Tensor) -> None:
    tables.launch(_adamw_kernel, tables.places, tables.rates, tables.chunks, control)
