"""LAMB by the CUDA kernels (csrc/cuda/lamb.cu), with the tables, norm and step counts of the Triton backend."""

from __future__ import annotations

import torch
from torch import Tensor

from ..ops import _cuda, _dispatch
from . import _triton
from .base import Batch
from .device import Outcome, Rows

_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


def _missing() -> str | None:
    return _cuda.why_missing() or _cuda.why_no_triton()


def _accepts(batches: list[Batch], scale: Tensor | float = 1.0) -> str | None:
    if reason := _triton.accepts(batches):
        return reason
    for batch in batches:
        for p, g in zip(batch.params, batch.gradients, strict=True):
            if g.dtype not in (torch.float32, p.dtype):
                return f"the CUDA kernels take gradients in float32 or their parameter's dtype, got {g.dtype}"
    return _cuda.why_not_measured("lamb", batches[0].params[0].device)


def _accepts_device(kind: str, batches: list[Batch], rows: Rows, *_rates) -> str | None:
    if kind != "lamb":
        return f"there is no CUDA kernel of {kind}"
    return _accepts(batches)


def update(tables, control: Tensor) -> None:
    """`triton_kernels.lamb.lamb` by the CUDA kernels."""
    squares = torch.empty(tables.num_chunks, 2, dtype=torch.float32, device=control.device)
    trusts = torch.empty(tables.num_tensors, dtype=torch.float32, device=control.device)
    memory = (tables.places, tables.rates, tables.chunks, tables.bounds, control, squares, trusts)
    kinds = [[_TYPES[param], _TYPES[grad], first, count] for (param, grad), first, count in tables.runs]
    _cuda.call("cuda_lamb", control.device, [t.data_ptr() for t in memory], tables.num_tensors, kinds)


@_dispatch.register("lamb", "cuda", available=_missing, accepts=_accepts)
def lamb(batches: list[Batch], scale: Tensor | float = 1.0) -> None:
    _triton.run("lamb", batches, scale, update)


@_dispatch.register("device_step", "cuda", available=_missing, accepts=_accepts_device)
def device_step(
    kind: str, batches: list[Batch], rows: Rows, lr: Tensor, grad_scale: Tensor, max_norm: float, most_norm: float
) -> Outcome:
    return _triton.step_on_device(kind, batches, rows, lr, grad_scale, max_norm, most_norm, update)


def _accepts_norm(tensors: list[Tensor]) -> str | None:
    return _triton.accepts_norm(tensors) or _cuda.why_not_measured("lamb", tensors[0].device)


# So that the whole step runs if "cuda" is asked for by name.
_dispatch.register("grad_norm", "cuda", available=_missing, accepts=_accepts_norm)(_triton.grad_norm)
