"""LAMB (You et al. 2020, algorithm 2) over the tables of optimizer.py: p -= lr trust u, trust = |p| / |u| of a tensor.

|u| must be known before any parameter changes, so there are three launches: the first updates the moments and sums
squares, the second computes the trust ratios, and the third computes u again from p, m and v (which moves 16 bytes an
element; storing u would move 20). The first and the third are launched once for each kind of element.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .common import kernel
from .optimizer import (
    GRAD,
    HAS_TRUST,
    LEAST,
    LR,
    MOST,
    RATES,
    SUMS,
    Tables,
    advance,
    block,
    part,
    pointer,
    states,
    update,
    whole_blocks,
    write,
)


@triton.jit
def _lamb_measure_block(
    pointers, first, size, scale, rates, has_trust, HAS_MASTER: tl.constexpr, WHOLE: tl.constexpr, BLOCK: tl.constexpr
):
    """(p^2, u^2)."""
    param_ptr, grad_ptr, master_ptr, first_ptr, second_ptr = pointers
    at, inside = block(first, size, WHOLE, BLOCK)
    p = tl.load(master_ptr + at, mask=inside, other=0.0)
    u = advance(grad_ptr, first_ptr, second_ptr, at, inside, scale, p, rates)
    if not has_trust:
        write(param_ptr, master_ptr, at, inside, p - tl.load(rates + LR) * u, HAS_MASTER)
    return p * p, u * u


@kernel
def _lamb_measure_kernel(
    places_ptr,  # (tensors, PLACES) int64
    rates_ptr,  # (tensors, RATES) fp32
    chunks_ptr,  # (chunks, 2) int32
    control_ptr,  # (3) fp32
    squares_ptr,  # (all chunks, 2) fp32: of p and of u
    first_chunk,
    PARAM_TYPE: tl.constexpr,
    GRAD_TYPE: tl.constexpr,
    HAS_MASTER: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Updates the moments, and the parameters that need no trust ratio; sums p^2 and u^2 of the others."""
    if tl.load(control_ptr + 2) == 0.0:
        return
    scale = tl.load(control_ptr + 1)
    chunk = first_chunk + tl.program_id(0)
    tensor, begin, size = part(places_ptr, chunks_ptr, chunk)
    rates = rates_ptr + tensor * RATES
    has_trust = tl.load(rates + HAS_TRUST) != 0.0
    param_ptr, master_ptr, first_ptr, second_ptr = states(places_ptr, tensor, PARAM_TYPE, ALIGNED)
    grad_ptr = pointer(places_ptr, tensor, GRAD, GRAD_TYPE, ALIGNED)
    of_weights = tl.zeros((BLOCK,), tl.float32)
    of_updates = tl.zeros((BLOCK,), tl.float32)
    whole, end = whole_blocks(begin, size, BLOCK)
    pointers = (param_ptr, grad_ptr, master_ptr, first_ptr, second_ptr)
    for first in range(begin, whole, BLOCK):
        p2, u2 = _lamb_measure_block(pointers, first, size, scale, rates, has_trust, HAS_MASTER, True, BLOCK)
        of_weights += p2
        of_updates += u2
    if whole < end:
        p2, u2 = _lamb_measure_block(pointers, whole, size, scale, rates, has_trust, HAS_MASTER, False, BLOCK)
        of_weights += p2
        of_updates += u2
    tl.store(squares_ptr + 2 * chunk, tl.sum(of_weights, 0))
    tl.store(squares_ptr + 2 * chunk + 1, tl.sum(of_updates, 0))


@kernel
def _lamb_trust_kernel(
    rates_ptr,  # (tensors, RATES) fp32
    bounds_ptr,  # (tensors + 1) int32: the chunks of each tensor
    squares_ptr,  # (all chunks, 2) fp32
    trusts_ptr,  # (tensors) fp32
    SUMS: tl.constexpr,
):
    tensor = tl.program_id(0).to(tl.int64)
    begin, end = tl.load(bounds_ptr + tensor), tl.load(bounds_ptr + tensor + 1)
    of_weights = tl.zeros((SUMS,), tl.float64)
    of_updates = tl.zeros((SUMS,), tl.float64)
    for first in range(begin, end, SUMS):
        at = first + tl.arange(0, SUMS)
        of_weights += tl.load(squares_ptr + 2 * at, mask=at < end, other=0.0).to(tl.float64)
        of_updates += tl.load(squares_ptr + 2 * at + 1, mask=at < end, other=0.0).to(tl.float64)
    weights, updates = tl.sqrt(tl.sum(of_weights, 0)), tl.sqrt(tl.sum(of_updates, 0))
    rates = rates_ptr + tensor * RATES
    trust = tl.maximum((weights / updates).to(tl.float32), tl.load(rates + LEAST))
    trust = tl.minimum(trust, tl.load(rates + MOST))
    tl.store(trusts_ptr + tensor, tl.where((weights > 0) & (updates > 0), trust, 1.0))


@triton.jit
def _lamb_move_block(
    pointers, first, size, rate, rates, HAS_MASTER: tl.constexpr, WHOLE: tl.constexpr, BLOCK: tl.constexpr
):
    param_ptr, master_ptr, first_ptr, second_ptr = pointers
    at, inside = block(first, size, WHOLE, BLOCK)
    p = tl.load(master_ptr + at, mask=inside, other=0.0)
    m = tl.load(first_ptr + at, mask=inside, other=0.0)
    v = tl.load(second_ptr + at, mask=inside, other=0.0)
    write(param_ptr, master_ptr, at, inside, p - rate * update(m, v, p, rates), HAS_MASTER)


@kernel
def _lamb_move_kernel(
    places_ptr,  # (tensors, PLACES) int64
    rates_ptr,  # (tensors, RATES) fp32
    chunks_ptr,  # (chunks, 2) int32
    control_ptr,  # (3) fp32
    trusts_ptr,  # (tensors) fp32
    first_chunk,
    PARAM_TYPE: tl.constexpr,
    HAS_MASTER: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    chunk = first_chunk + tl.program_id(0)
    tensor, begin, size = part(places_ptr, chunks_ptr, chunk)
    rates = rates_ptr + tensor * RATES
    if (tl.load(control_ptr + 2) == 0.0) | (tl.load(rates + HAS_TRUST) == 0.0):
        return
    rate = tl.load(rates + LR) * tl.load(trusts_ptr + tensor)
    pointers = states(places_ptr, tensor, PARAM_TYPE, ALIGNED)
    whole, end = whole_blocks(begin, size, BLOCK)
    for first in range(begin, whole, BLOCK):
        _lamb_move_block(pointers, first, size, rate, rates, HAS_MASTER, True, BLOCK)
    if whole < end:
        _lamb_move_block(pointers, whole, size, rate, rates, HAS_MASTER, False, BLOCK)


def lamb(tables: Tables, control: Tensor) -> None:
    squares = torch.empty(tables.num_chunks, 2, dtype=torch.float32, device=control.device)
    trusts = torch.empty(tables.num_tensors, dtype=torch.float32, device=control.device)
    tables.launch(_lamb_measure_kernel, tables.places, tables.rates, tables.chunks, control, squares)
    _lamb_trust_kernel[(tables.num_tensors,)](tables.rates, tables.bounds, squares, trusts, SUMS=SUMS, num_warps=4)
    tables.launch(_lamb_move_kernel, tables.places, tables.rates, tables.chunks, control, trusts, gradients=False)
