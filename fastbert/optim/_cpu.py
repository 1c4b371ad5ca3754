"""AdamW, LAMB and the gradients' norm by the CPU kernels (csrc/cpu/optimizer.cpp): one call for all tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import _native, transforms
from ..ops import _cpu, _dispatch, _few_rows
from ..wording import dtype_name
from .base import Batch
from .rates import rates


def _why_not(tensor: Tensor, dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.bfloat16)) -> str | None:
    # Checked first: the memory of a DTensor or of a sparse tensor is not what its shape says.
    if type(tensor) not in transforms.PLAIN_TENSORS:
        return f"the CPU kernels take plain tensors, got a {type(tensor).__name__}"
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        return f"the CPU kernels take dense CPU tensors, got one on {tensor.device} ({tensor.layout})"
    if tensor.dtype not in dtypes:
        names = " and ".join(dtype_name(d) for d in dtypes)
        return f"the CPU kernels take {names} here, got {dtype_name(tensor.dtype)}"
    return None


def _written(gradient: Tensor) -> int:
    """The address of what is known about where a gradient is zero; 0 for nothing."""
    chunks = _few_rows.written_chunks(gradient)
    return 0 if chunks is None else chunks.data_ptr()


def _accepts_norm(tensors: list[Tensor]) -> str | None:
    return next((reason for t in tensors if (reason := _why_not(t))), None)


@_dispatch.register("grad_norm", "cpu", available=_native.why_missing, accepts=_accepts_norm)
def grad_norm(tensors: list[Tensor]) -> Tensor:
    tensors = [t.contiguous() for t in tensors]  # copies, if any, must live until the call ends
    places = [number for t in tensors for number in (t.data_ptr(), t.numel(), _cpu.code(t), _written(t))]
    return torch.tensor(_native.extension().grad_norm(places), dtype=torch.float32, device="cpu")


def _accepts(batches: list[Batch], scale: Tensor | float = 1.0) -> str | None:
    for batch in batches:
        lists = zip(batch.params, batch.gradients, batch.targets, batch.first, batch.second, strict=True)
        for p, gradient, *states in lists:
            if reason := _why_not_update(p, gradient, states):
                return reason
    return None


def _why_not_update(p: Tensor, gradient: Tensor, states: list[Tensor]) -> str | None:
    if reason := _why_not(p) or _why_not(gradient):
        return reason
    for state in states:
        if reason := _why_not(state, (torch.float32,)):
            return reason
        if not state.is_contiguous():
            return "the CPU kernels take contiguous parameters and states, got one that is not"
        if state.numel() != p.numel():
            return f"the CPU kernels take states of their parameter's size, got {state.numel()}"
    return None if p.is_contiguous() else "the CPU kernels take contiguous parameters, got one that is not"


def _run(name: str, batches: list[Batch], scale: Tensor | float) -> None:
    places, numbers, kept = [], [], []
    for batch in batches:
        of_step: dict[int, tuple] = {}
        for i, p in enumerate(batch.params):
            target, gradient, step = batch.targets[i], batch.gradients[i].contiguous(), batch.steps[i]
            kept.append(gradient)  # if it is a copy, it must live until the call ends
            places += (
                p.data_ptr(),
                gradient.data_ptr(),
                0 if target is p else target.data_ptr(),
                batch.first[i].data_ptr(),
                batch.second[i].data_ptr(),
                p.numel(),
                _cpu.code(gradient),
                _written(gradient),
            )
            if step not in of_step:
                of_step[step] = rates(name, batch.group, step)
            numbers += of_step[step]
    getattr(_native.extension(), name)(places, numbers, float(scale))
    # Autograd and the caches of packed weights detect changes by the version.
    torch.autograd.graph.increment_version([p for batch in batches for p in batch.params])


@_dispatch.register("adamw", "cpu", available=_native.why_missing, accepts=_accepts)
def adamw(batches: list[Batch], scale: float = 1.0) -> None:
    _run("adamw", batches, scale)


@_dispatch.register("lamb", "cpu", available=_native.why_missing, accepts=_accepts)
def lamb(batches: list[Batch], scale: Tensor | float = 1.0) -> None:
    _run("lamb", batches, scale)
