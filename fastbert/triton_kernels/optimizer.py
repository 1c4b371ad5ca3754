"""Shared by AdamW (adamw.py) and LAMB (lamb.py) over all tensors of a model: tables, the norm, and the update

    g = scale grad;  m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2;  u = m c1 / (sqrt(v) c2 + eps) + decay p

Tensors are cut into chunks of one size, with a program for each. Tables in device memory have the tensors' addresses
and rates, so the number of launches does not grow with the number of tensors: one for AdamW, three for LAMB, two for
norm, clipping and step counts. Launches over chunks are made once for every kind of element, of which a model has one
or two. Sums are computed chunk by chunk in a fixed order: without atomics, so that two runs give equal bits.

``control`` (3,) fp32 is (norm, scale, finite): if finite is 0 nothing is changed, and the host need not know.
"""

from __future__ import annotations

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from .common import cdiv, kernel

CHUNK = tl.constexpr(16384)
_LARGEST = tl.constexpr(3.4028234663852886e38)  # in float32
# Four elements a thread, a 128-bit load from each array; with eight, registers spill in bf16 on sm_90.
BLOCK, WARPS = 1024, 8
SUMS = 1024  # the number of sums that a program adds up at a time
# The columns of the two tables; csrc/include/optimizer.h has the same order.
PARAM, GRAD, MASTER, FIRST, SECOND, SIZE, STEP, PLACES = (tl.constexpr(i) for i in range(8))
LR, EPS, DECAY, RATE1, RATE2, CORRECT1, CORRECT2, HAS_TRUST, LEAST, MOST, RATES = (tl.constexpr(i) for i in range(11))

_TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


@triton.jit
def pointer(places_ptr, tensor, column: tl.constexpr, DTYPE: tl.constexpr, ALIGNED: tl.constexpr):
    ptr = tl.load(places_ptr + tensor * PLACES + column).to(tl.pointer_type(DTYPE))
    return tl.multiple_of(ptr, 16) if ALIGNED else ptr


@triton.jit
def part(places_ptr, chunks_ptr, chunk):
    """(tensor, the element of it at which the chunk begins, the tensor's size)."""
    tensor = tl.load(chunks_ptr + 2 * chunk).to(tl.int64)
    begin = tl.load(chunks_ptr + 2 * chunk + 1).to(tl.int64) * CHUNK
    return tensor, begin, tl.load(places_ptr + tensor * PLACES + SIZE)


@triton.jit
def states(places_ptr, tensor, PARAM_TYPE: tl.constexpr, ALIGNED: tl.constexpr):
    """Pointers to (parameter, master, first and second moment)."""
    return (
        pointer(places_ptr, tensor, PARAM, PARAM_TYPE, ALIGNED),
        pointer(places_ptr, tensor, MASTER, tl.float32, ALIGNED),
        pointer(places_ptr, tensor, FIRST, tl.float32, ALIGNED),
        pointer(places_ptr, tensor, SECOND, tl.float32, ALIGNED),
    )


@triton.jit
def whole_blocks(begin, size, BLOCK: tl.constexpr):
    """(end of the chunk's whole blocks, its end). Whole blocks have no mask, with which loads would be narrow."""
    end = tl.minimum(begin + CHUNK, size)
    return begin + (end - begin) // BLOCK * BLOCK, end


@triton.jit
def block(first, size, WHOLE: tl.constexpr, BLOCK: tl.constexpr):
    """(places, which of them are inside)."""
    at = first + tl.arange(0, BLOCK)
    return at, (tl.full((BLOCK,), True, tl.int1) if WHOLE else at < size)


@triton.jit
def update(m, v, p, rates):
    """u, with correctly rounded roots and quotients, which cost no time since memory limits the speed."""
    root = tl.sqrt_rn(v) * tl.load(rates + CORRECT2) + tl.load(rates + EPS)
    return tl.div_rn(m * tl.load(rates + CORRECT1), root) + tl.load(rates + DECAY) * p


@triton.jit
def advance(grad_ptr, first_ptr, second_ptr, at, inside, scale, p, rates):
    """Updates the moments and returns u, which is 0 outside."""
    g = tl.load(grad_ptr + at, mask=inside, other=0.0).to(tl.float32) * scale
    m = tl.load(first_ptr + at, mask=inside, other=0.0)
    v = tl.load(second_ptr + at, mask=inside, other=0.0)
    # m - (1-b1) m instead of b1 m: the distance to 1 of 0.999 rounded to fp32, which matters, has an error of 1e-5.
    m = m - tl.load(rates + RATE1) * m + tl.load(rates + RATE1) * g
    v = v - tl.load(rates + RATE2) * v + tl.load(rates + RATE2) * g * g
    v = tl.where(v > _LARGEST, _LARGEST, v)  # below infinity, of which the next step would make inf - inf
    tl.store(first_ptr + at, m, mask=inside)
    tl.store(second_ptr + at, v, mask=inside)
    return tl.where(inside, update(m, v, p, rates), 0.0)


@triton.jit
def write(param_ptr, master_ptr, at, inside, p, HAS_MASTER: tl.constexpr):
    if HAS_MASTER:
        tl.store(master_ptr + at, p, mask=inside)
    tl.store(param_ptr + at, p.to(param_ptr.dtype.element_ty), mask=inside)


@kernel
def _square_sums_kernel(
    places_ptr,  # (tensors, PLACES) int64
    chunks_ptr,  # (chunks, 2) int32: tensor, number of the chunk within it
    partial_ptr,  # (all chunks) fp32
    first_chunk,
    GRAD_TYPE: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    chunk = first_chunk + tl.program_id(0)
    tensor, begin, size = part(places_ptr, chunks_ptr, chunk)
    grad_ptr = pointer(places_ptr, tensor, GRAD, GRAD_TYPE, ALIGNED)
    acc = tl.zeros((BLOCK,), tl.float32)
    whole, end = whole_blocks(begin, size, BLOCK)
    for first in range(begin, whole, BLOCK):
        g = tl.load(grad_ptr + first + tl.arange(0, BLOCK)).to(tl.float32)
        acc += g * g
    if whole < end:
        at = whole + tl.arange(0, BLOCK)
        g = tl.load(grad_ptr + at, mask=at < size, other=0.0).to(tl.float32)
        acc += g * g
    tl.store(partial_ptr + chunk, tl.sum(acc, 0))


@kernel
def _control_kernel(
    partial_ptr,  # (chunks) fp32: squares of the gradients
    hyper_ptr,  # (tensors, 3) fp64: log2 of the betas, 0 where nothing is corrected; factor on the learning rate
    places_ptr,  # (tensors, PLACES) int64: STEP points to an int32, counted here
    rates_ptr,  # (tensors, RATES) fp32: LR and the corrections are written here
    lr_ptr,  # (1) fp32
    grad_scale_ptr,  # (1) fp32
    control_ptr,  # (3) fp32
    num_chunks,
    max_norm,  # the norm is clipped to it; inf for no clipping
    most_norm,  # LAMB: gradients with a larger norm are scaled down to it; inf for no scaling
    SUMS: tl.constexpr,
):
    """One program per tensor. Each sums all chunks in the same order, so all get the same norm."""
    tensor = tl.program_id(0).to(tl.int64)
    acc = tl.zeros((SUMS,), tl.float64)
    for first in range(0, num_chunks, SUMS):
        at = first + tl.arange(0, SUMS)
        acc += tl.load(partial_ptr + at, mask=at < num_chunks, other=0.0).to(tl.float64)
    grad_scale = tl.load(grad_scale_ptr)
    norm = tl.sqrt(tl.sum(acc, 0)) * tl.abs(grad_scale).to(tl.float64)
    finite = norm < float("inf")  # neither inf nor NaN
    clip = tl.minimum(tl.div_rn(max_norm, norm.to(tl.float32) + 1e-6), 1.0)
    divisor = tl.maximum(tl.div_rn(norm.to(tl.float32) * clip, most_norm), 1.0)
    if tensor == 0:
        tl.store(control_ptr, norm.to(tl.float32))
        tl.store(control_ptr + 1, tl.where(finite, tl.div_rn(grad_scale * clip, divisor), 0.0))
        tl.store(control_ptr + 2, tl.where(finite, 1.0, 0.0))
    address = tl.load(places_ptr + tensor * PLACES + STEP)
    if finite & (address != 0):  # a tensor without a gradient is not counted
        step_ptr = address.to(tl.pointer_type(tl.int32))
        step = tl.load(step_ptr) + 1
        tl.store(step_ptr, step)
        hyper = hyper_ptr + 3 * tensor
        log1, log2, lr_scale = tl.load(hyper), tl.load(hyper + 1), tl.load(hyper + 2)
        # In fp64: in the first steps, 1 - 0.999^step loses three digits of fp32 powers.
        power1, power2 = tl.exp2(step.to(tl.float64) * log1), tl.exp2(step.to(tl.float64) * log2)
        rates = rates_ptr + tensor * RATES
        tl.store(rates + LR, tl.load(lr_ptr) * lr_scale.to(tl.float32))
        tl.store(rates + CORRECT1, tl.where(log1 < 0, 1.0 / (1.0 - power1), 1.0).to(tl.float32))
        tl.store(rates + CORRECT2, tl.where(log2 < 0, 1.0 / tl.sqrt(1.0 - power2), 1.0).to(tl.float32))


class Tables:
    """The addresses and rates of a set of tensors, on the device, for every launch below.

    Args:
        kinds: (dtype of the parameter, dtype of the gradient) of each tensor; equal ones are adjacent.
        sizes: the number of elements of each tensor.
        places: (tensors, PLACES) int64 on the device; MASTER is the parameter itself if it has no master.
        rates: (tensors, RATES) float32 on the device, or None for the norm alone.
        aligned: whether every address is a multiple of 16.
    """

    def __init__(self, kinds: tuple, sizes: tuple, places: Tensor, rates: Tensor | None, aligned: bool) -> None:
        self.places, self.rates, self.aligned = places, rates, aligned
        self.num_tensors = len(sizes)
        self.chunks, self.bounds, self.num_chunks, self.runs = _layout(kinds, sizes, places.device)

    def launch(self, kernel, *arguments, gradients: bool = True, parameters: bool = True) -> None:
        """Launches a kernel over all chunks, once for each kind."""
        for (param, grad), first, count in self.runs:
            types = {"GRAD_TYPE": _TYPES[grad]} if gradients else {}
            if parameters:
                types |= {"PARAM_TYPE": _TYPES[param], "HAS_MASTER": param != torch.float32}
            kernel[(count,)](*arguments, first, **types, ALIGNED=self.aligned, BLOCK=BLOCK, num_warps=WARPS)


@lru_cache(maxsize=32)
def _layout(kinds: tuple, sizes: tuple[int, ...], device: torch.device):
    """chunks (chunks, 2), bounds (tensors + 1), both on the device; number of chunks; [(kind, first chunk, chunks)]."""
    counts = torch.tensor([cdiv(size, CHUNK.value) for size in sizes], dtype=torch.int64, device="cpu")
    bounds = torch.zeros(len(sizes) + 1, dtype=torch.int64, device="cpu")
    torch.cumsum(counts, 0, out=bounds[1:])
    owners = torch.repeat_interleave(torch.arange(len(sizes), device="cpu"), counts)
    chunks = torch.stack([owners, torch.arange(len(owners), device="cpu") - bounds[owners]], 1).to(torch.int32)
    runs = []
    for kind, first, last in zip(kinds, bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        if runs and runs[-1][0] == kind:
            runs[-1] = (kind, runs[-1][1], last - runs[-1][1])
        else:
            runs.append((kind, first, last - first))
    runs = [run for run in runs if run[2]]
    return chunks.to(device), bounds.to(torch.int32).to(device), len(owners), runs


def square_sums(tables: Tables) -> Tensor:
    """(chunks,) fp32: the gradients' squares, summed chunk by chunk."""
    partial = torch.empty(tables.num_chunks, dtype=torch.float32, device=tables.places.device)
    tables.launch(_square_sums_kernel, tables.places, tables.chunks, partial, parameters=False)
    return partial


def control(
    tables: Tables, partial: Tensor, hyper: Tensor, lr: Tensor, grad_scale: Tensor, max_norm: float, most_norm: float
) -> Tensor:
    """(3,) fp32: norm, scale, finite. If finite, counts the steps and writes the rates that depend on them."""
    out = torch.empty(3, dtype=torch.float32, device=partial.device)
    _control_kernel[(max(tables.num_tensors, 1),)](
        *(partial, hyper, tables.places, tables.rates, lr, grad_scale, out, tables.num_chunks, max_norm, most_norm),
        SUMS=SUMS,
        num_warps=4,
    )
    return out
