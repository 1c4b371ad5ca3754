"""Int8 products by the CPU kernels, and the packed weights that they read (csrc/include/gemm_int8.h)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from .. import _native, reference
from ..errors import InputError
from ..reference.linear_int8 import Int8Weight
from ..wording import dtype_name
from . import _cpu, _dispatch

_HEADER = 128  # bytes in front of the weights
_ACTIVATIONS = {None: 0, "none": 1, "tanh": 2}


def pack_int8(weight: Tensor, outliers: Tensor | None = None) -> Tensor:
    """Quantises and packs a weight.

    Args:
        weight: (N, K) floating, finite.
        outliers: (O,) columns that stay float32, or None.

    Returns:
        uint8, opaque to everyone but `linear_int8` and `unpack_int8`.

    Raises:
        InputError: the weight is not a finite matrix on the CPU.
        BackendError: the extension is not there.
    """
    extension = _native.extension()
    if weight.dim() != 2 or weight.device.type != "cpu" or not weight.is_floating_point():
        raise InputError(f"a weight to quantise must be a floating (N, K) on the CPU, got {_describe(weight)}")
    weight = weight.detach().to(torch.float32).contiguous()
    if not weight.isfinite().all():
        raise InputError("a weight to quantise must be finite, got NaN or infinity")
    columns = _cpu.buffer(0, torch.int32) if outliers is None else outliers.unique().to(torch.int32)
    n, k = weight.shape
    if columns.numel() and not 0 <= int(columns[0]) <= int(columns[-1]) < k:
        raise InputError(f"outliers must be columns 0..{k - 1}, got {columns.tolist()}")
    packed = _cpu.buffer(extension.int8_packed_size(n, k, columns.numel()), torch.uint8)
    extension.pack_int8(weight.data_ptr(), k, n, k, columns.data_ptr(), columns.numel(), packed.data_ptr())
    return packed


def packed_shape(packed: Tensor) -> tuple[int, int]:
    """[N, K] of what `pack_int8` made; InputError for something else, beyond whose end a kernel would read."""
    if packed.dtype != torch.uint8 or packed.dim() != 1 or packed.numel() < _HEADER:
        raise InputError(f"expected a weight packed by pack_int8, got {_describe(packed)}")
    packed = packed.contiguous()
    if not _native.why_missing() and not _native.extension().is_packed_int8(packed.data_ptr(), packed.numel()):
        raise InputError(f"expected a weight packed by pack_int8, got {_describe(packed)} with another beginning")
    return tuple(packed[:16].numpy().view(np.int64).tolist())


def unpack_int8(packed: Tensor) -> Int8Weight:
    """What `pack_int8` made, in plain tensors.

    Args:
        packed: uint8, from `pack_int8`; not looked through for damage.

    Returns:
        an `Int8Weight`: q (N, K) int8, scale (groups, N) float32, the group's size, and the columns that stay float32.
    """
    raw = packed.numpy()
    fields = raw[:96].view(np.int64).tolist()
    n, k, num_outliers, n_padded, k_padded, group, groups, scale, _, outliers, outlier_weights, _ = fields

    def part(offset: int, dtype: type, *shape: int) -> Tensor:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return torch.from_numpy(raw[offset : offset + size].view(dtype).reshape(shape).copy())

    q = part(_HEADER, np.int8, n_padded // 16, k_padded // 4, 16, 4).transpose(1, 2).reshape(n_padded, k_padded)
    return Int8Weight(
        q[:n, :k],
        part(scale, np.float32, groups, n_padded)[:, :n],
        group,
        part(outliers, np.int32, num_outliers),
        part(outlier_weights, np.float32, num_outliers, n_padded)[:, :n],
    )


def int8_attention_dtype(x: Tensor) -> torch.dtype:
    """The dtype in which attention between int8 layers is computed for hidden states x.

    That of x, or bfloat16 where the processor multiplies it faster: its rounding (2^-9 of a number) is well below that
    of the int8 products around it. A compiled model keeps that of x.
    """
    if x.dtype != torch.float32 or x.device.type != "cpu" or torch.compiler.is_compiling():
        return x.dtype
    if _dispatch.current_backend() not in ("auto", "cpu") or _native.why_missing():
        return x.dtype
    return torch.bfloat16 if _native.extension().has_bf16_attention() else torch.float32


def _describe(x: Tensor) -> str:
    return f"{dtype_name(x.dtype)} {tuple(x.shape)} on {x.device}"


def _rows(x: Tensor) -> Tensor:
    """(..., C) as (rows, C) with contiguous rows, which need not follow each other."""
    x = x.reshape(-1, x.shape[-1])
    return x if x.stride(-1) == 1 and x.stride(0) >= x.shape[-1] else x.contiguous()


def _forward(
    x: Tensor, packed: Tensor, n: int, bias: Tensor | None, activation: int, residual: Tensor | None
) -> Tensor:
    out = x.new_empty(*x.shape[:-1], n)
    rows, bias = _rows(x), _cpu.as_float32(bias)
    packed = packed.contiguous()
    if packed.data_ptr() % 64:
        packed = packed.clone()  # torch's own memory starts at a multiple of 64
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
    _check(x, packed, n, bias, residual)
    if activation not in _ACTIVATIONS.values():
        raise InputError(f"linear_int8: expected an activation of 0 to 2, got {activation}")


_linear_int8 = _cpu.define(
    "linear_int8(Tensor x, Tensor packed, int n, Tensor? bias, int activation, Tensor? residual) -> Tensor",
    _forward,
    _forward_fake,
    tensors="x: activation (..., K); bias: parameter (N); residual: activation (..., N); packed: uint8 (P)",
    rest=_check_of_op,
)


def _check(x: Tensor, packed: Tensor, n: int, bias: Tensor | None, residual: Tensor | None) -> None:
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, bias, residual)):
        raise InputError("int8 weights have no gradient: expected inputs that need none, or torch.no_grad()")
    if not torch.compiler.is_compiling():
        held = list(packed_shape(packed))
        if held != [n, x.shape[-1]]:
            raise InputError(
                f"x must be (..., K) for a packed weight [N, K] = {held}, got {tuple(x.shape)} and N = {n}"
            )
    if bias is not None and bias.shape != (n,):
        raise InputError(f"bias must have shape {(n,)}, got {tuple(bias.shape)}")
    if residual is not None and residual.shape != (*x.shape[:-1], n):
        raise InputError(f"residual must be {(*x.shape[:-1], n)}, got {tuple(residual.shape)}")


def _accepts(x: Tensor, packed: Tensor, n: int, bias=None, *, activation=None, residual=None) -> str | None:
    return _cpu.why_not(x, residual, parameters=(bias,)) or (
        None if packed.device.type == "cpu" else f"the packed weight is on {packed.device}"
    )


@_dispatch.register("linear_int8", "cpu", available=_native.why_missing, accepts=_accepts)
def linear_int8(x: Tensor, packed: Tensor, n: int, bias=None, *, activation=None, residual=None) -> Tensor:
    _check(x, packed, n, bias, residual)
    return _linear_int8(x, packed, n, bias, _ACTIVATIONS[activation], residual)


@_dispatch.register("linear_int8", "reference")
def linear_int8_reference(x: Tensor, packed: Tensor, n: int, bias=None, *, activation=None, residual=None) -> Tensor:
    _check(x, packed, n, bias, residual)
    return reference.linear_int8(x, unpack_int8(packed), bias, activation, residual).to(x.dtype)
