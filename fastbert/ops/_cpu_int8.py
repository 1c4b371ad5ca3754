"""Dense layers with int8 weights by the CPU kernels (csrc/include/gemm_int8.h)."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import _native
from ..errors import InputError
from . import _cpu, _define, _dispatch
from ._int8_weights import readable
from .linear_int8 import check

_ACTIVATIONS = {None: 0, "none": 1, "tanh": 2}


def int8_attention_dtype(x: Tensor) -> torch.dtype:
    """The dtype in which attention between int8 layers is computed for hidden states x.

    It is that of x, or bfloat16 if the processor multiplies it faster: its relative rounding error of 2^-9 is well
    below that of the int8 products around it. A compiled model keeps that of x.
    """
    if x.dtype != torch.float32 or x.device.type != "cpu" or torch.compiler.is_compiling():
        return x.dtype
    if _dispatch.current_backend() not in ("auto", "cpu") or _native.why_missing():
        return x.dtype
    return torch.bfloat16 if _native.extension().has_bf16_attention() else torch.float32


def _forward(
    x: Tensor, packed: Tensor, n: int, bias: Tensor | None, activation: int, residual: Tensor | None
) -> Tensor:
    out = x.new_empty(*x.shape[:-1], n)
    rows, bias = _cpu.contiguous_rows(x), _cpu.as_float32(bias)
    packed = readable(packed)
    residual = None if residual is None else residual.contiguous()
    pointers = [_cpu.pointer(t) for t in (residual, out)]
    _native.extension().gemm_int8(
        _cpu.code(x),
        rows.data_ptr(),
        rows.stride(0),
        packed.data_ptr(),
        _cpu.pointer(bias),
        activation,
        *pointers,
        n,
        _cpu.code(out),
        rows.shape[0],
        n,
        rows.shape[1],
        0,
    )
    return out


def _forward_fake(x: Tensor, packed: Tensor, n, bias, activation, residual) -> Tensor:
    return x.new_empty(*x.shape[:-1], n)


def _check_of_op(x: Tensor, packed: Tensor, n: int, bias: Tensor | None, activation: int, residual) -> None:
    check(x, packed, n, bias, residual)
    if activation not in _ACTIVATIONS.values():
        raise InputError(f"linear_int8: expected an activation of 0 to 2, got {activation}")


_linear_int8 = _define.define(
    "linear_int8(Tensor x, Tensor packed, int n, Tensor? bias, int activation, Tensor? residual) -> Tensor",
    _forward,
    _forward_fake,
    tensors="x: activation (..., K); bias: parameter (N); residual: activation (..., N); packed: uint8 (P)",
    rest=_check_of_op,
)


def _accepts(x: Tensor, packed: Tensor, n: int, bias=None, *, activation=None, residual=None) -> str | None:
    return _cpu.why_not(x, residual, parameters=(bias,))  # `check` has looked at the packed weight


@_dispatch.register("linear_int8", "cpu", available=_native.why_missing, accepts=_accepts)
def linear_int8(x: Tensor, packed: Tensor, n: int, bias=None, *, activation=None, residual=None) -> Tensor:
    return _linear_int8(x, packed, n, bias, _ACTIVATIONS[activation], residual)
