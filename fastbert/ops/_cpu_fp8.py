"""Dense layers in 8-bit floats on the CPU: torch's scaled product, casts and transposes by torch's functions."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from .. import fp8, reference
from . import _cpu, _dispatch
from .linear_fp8 import Casts, apply


def _cast(x: Tensor, slot: fp8.Slot) -> Tensor:
    slot.note(x)
    return reference.quantize_fp8(x, slot.scale, slot.kind)


def _cast_weight(weight: Tensor, slot: fp8.Slot, out: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor]:
    data = _cast(weight, slot)
    if out is None:
        return data, data.t().contiguous()
    for target, source in zip(out, (data, data.t()), strict=True):
        target.copy_(source)
    return out


def _cast_gradient(dout: Tensor, slot: fp8.Slot, sums: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    data = _cast(dout, slot)
    return data, _transpose(data), dout.sum(0, dtype=torch.float32) if sums else None


def _transpose(data: Tensor) -> Tensor:
    rows, columns = data.shape
    out = torch.zeros(columns, -(-rows // fp8.ALIGNMENT) * fp8.ALIGNMENT, dtype=data.dtype, device=data.device)
    out[:, :rows].copy_(data.t())
    return out


CASTS = Casts(_cast, _cast_weight, _cast_gradient, _transpose)


def _accepts(x: Tensor, weight: Tensor, bias: Tensor | None, site: fp8.Site) -> str | None:
    if reason := _cpu.why_not_device(x, weight):
        return reason
    return None if x.is_floating_point() and x.dtype != torch.float64 else f"it takes at most float32, got {x.dtype}"


@cache
def _why_missing() -> str | None:
    if torch._C._dispatch_has_kernel_for_dispatch_key("aten::_scaled_mm", "CPU"):
        return None
    return f"torch {torch.__version__} has no product of 8-bit floats on a CPU"


@_dispatch.register("linear_fp8", "cpu", available=_why_missing, accepts=_accepts)
def linear_fp8(x: Tensor, weight: Tensor, bias: Tensor | None, site: fp8.Site) -> Tensor:
    return apply(x, weight, bias, site, CASTS)
