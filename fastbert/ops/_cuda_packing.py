"""Packing and unpacking by the CUDA kernels: three launches for the indices, one for each tensor that is moved."""

from __future__ import annotations

import torch
from torch import Tensor

from . import _cuda, _define, _dispatch
from .packing import read_mask_by_torch


def _on_cuda(x: Tensor) -> str | None:
    return None if x.device.type == "cuda" else f"the CUDA kernels take CUDA tensors, got one on {x.device}"


def _accepts_pack(mask: Tensor, capacity: int) -> str | None:
    return _on_cuda(mask) or _cuda.why_not_measured("pack", mask.device)


def _accepts_mask(mask: Tensor, first_column: bool) -> str | None:
    return _on_cuda(mask)


_dispatch.register("read_mask", "cuda", available=_cuda.why_missing, accepts=_accepts_mask)(read_mask_by_torch)


@_dispatch.register("pack", "cuda", available=_cuda.why_missing, accepts=_accepts_pack)
def pack(mask: Tensor, capacity: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    keep = (mask if mask.dtype == torch.bool else mask != 0).contiguous()
    new = keep.new_empty
    indices, positions = (new(capacity, dtype=torch.int64) for _ in range(2))
    slots, bounds = new(keep.numel(), dtype=torch.int32), new(keep.shape[0] + 1, dtype=torch.int32)
    statistics = new(2, dtype=torch.int32)
    out = [t.data_ptr() for t in (indices, positions, slots, bounds, statistics)]
    _cuda.call("cuda_pack", keep.device, keep.data_ptr(), *keep.shape, capacity, out)
    return indices, positions, slots, bounds, statistics


def _gather(x: Tensor, places: Tensor, inverse: Tensor) -> Tensor:
    x, places = x.contiguous(), places.contiguous()
    out = x.new_empty(places.shape[0], *x.shape[1:])
    bytes_of_row = x[:1].numel() * x.element_size() if x.shape[0] else out[:1].numel() * out.element_size()
    wide = places.dtype == torch.int64
    arguments = (x.data_ptr(), places.data_ptr(), wide, out.data_ptr(), places.shape[0], bytes_of_row)
    _cuda.call("cuda_gather_rows", x.device, *arguments)
    return out


def _gather_fake(x: Tensor, places: Tensor, inverse: Tensor) -> Tensor:
    return x.new_empty(places.shape[0], *x.shape[1:])


def _setup_context(ctx, inputs, output) -> None:
    _, places, inverse = inputs
    ctx.save_for_backward(places, inverse)


def _gradient(ctx, dout: Tensor):
    places, inverse = ctx.saved_tensors
    return _gather_rows(dout, inverse, places), None, None


_gather_rows = _define.define(
    "cuda_gather_rows(Tensor x, Tensor places, Tensor inverse) -> Tensor",
    _gather,
    _gather_fake,
    backward=_gradient,
    setup_context=_setup_context,
    key="CompositeExplicitAutograd",
)


def _accepts_gather(x: Tensor, places: Tensor, inverse: Tensor) -> str | None:
    if any(t.dtype not in (torch.int32, torch.int64) for t in (places, inverse)):
        return f"the CUDA kernels take int32 and int64 places, got {places.dtype} and {inverse.dtype}"
    if places.device != x.device or inverse.device != x.device:  # of which the kernel is told no more than addresses
        return f"the CUDA kernels take tensors on one device, got {x.device}, {places.device} and {inverse.device}"
    return _on_cuda(x) or _cuda.why_not_measured("gather_rows", x.device)


@_dispatch.register("gather_rows", "cuda", available=_cuda.why_missing, accepts=_accepts_gather)
def gather_rows(x: Tensor, places: Tensor, inverse: Tensor) -> Tensor:
    return _gather_rows(x, places, inverse)
