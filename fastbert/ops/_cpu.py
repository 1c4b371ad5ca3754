"""Shared by the CPU kernels: checks of calls, and conversion of tensors to pointers.

The kernels (csrc/cpu) take float32 and bfloat16; statistics, parameters and their gradients are float32 there, whatever
the parameter's own dtype.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from .. import _native
from ..errors import InputError
from ..wording import dtype_name

# The dtypes of activations, and their codes in csrc/include/types.h.
DTYPES = {torch.float32: 0, torch.bfloat16: 1}


def _follow_torch() -> None:
    """Lets the kernels use as many threads as torch in every Python thread. torch tells OpenMP its number of threads in
    the thread that sets it, and in another only when an op of its own asks there; so the kernels ask torch."""
    with contextlib.suppress(AttributeError, OSError):  # a torch without at::get_num_threads(): OpenMP's number counts
        count = ctypes.CDLL(torch._C.__file__)._ZN2at15get_num_threadsEv
        _native.extension().follow_threads(ctypes.cast(count, ctypes.c_void_p).value)


if _native.why_missing() is None:
    _follow_torch()


def why_not_device(*tensors: Tensor | None) -> str | None:
    """None if all tensors are on the CPU, else the reason why not: kernels are given addresses."""
    for tensor in tensors:  # a loop, as below: torch 2.6's compiler cannot trace next() with a default
        if tensor is not None and tensor.device.type != "cpu":
            return f"the CPU kernels take CPU tensors, got one on {tensor.device}"
    return None


def why_not(
    x: Tensor,
    *others: Tensor | None,
    parameters: tuple[Tensor | None, ...] = (),
    widened: tuple[torch.dtype, ...] = (),
) -> str | None:
    """None if the kernels can take these tensors, else the reason why not.

    Args:
        x, others: activations, which must have one dtype.
        parameters: tensors that will be converted to float32.
        widened: further dtypes that are accepted, since the caller converts them to float32.
    """
    if reason := why_not_device(x, *others, *parameters):
        return reason
    for tensor in (x, *others):
        if tensor is not None and tensor.dtype not in DTYPES and tensor.dtype not in widened:
            return f"the CPU kernels take float32 and bfloat16, got {dtype_name(tensor.dtype)}"
        if tensor is not None and tensor.dtype != x.dtype:
            return f"the CPU kernels take one dtype, got {x.dtype} and {tensor.dtype}"
    for tensor in parameters:
        if tensor is not None and tensor.dtype not in DTYPES and tensor.dtype not in widened:
            return f"the CPU kernels take float32 parameters, got {dtype_name(tensor.dtype)}"
    return None


def buffer(shape: int | Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """Uninitialised memory for a kernel to fill: on the CPU and of this dtype, whatever torch's defaults are."""
    return torch.empty(shape, dtype=dtype, device="cpu")


def code(x: Tensor) -> int:
    """The code of a tensor's dtype in the kernels (csrc/include/types.h)."""
    return code_of(x.dtype)


def code_of(dtype: torch.dtype) -> int:
    """The code of float32 or bfloat16 in the kernels."""
    return DTYPES[dtype]


def pointer(x: Tensor | None) -> int:
    """Address of the first element, 0 for None."""
    return 0 if x is None else x.data_ptr()


def rows_and_columns(x: Tensor) -> tuple[int, int]:
    """(..., C) as (rows, C)."""
    columns = x.shape[-1]
    return (x.numel() // columns if columns else 0), columns


def contiguous_rows(x: Tensor) -> Tensor:
    """(..., C) as (rows, C) with contiguous rows, which need not follow each other."""
    x = x.reshape(rows_and_columns(x)) if x.shape[-1] else x.new_empty(x.shape[:-1].numel(), 0)
    return x if x.stride(1) == 1 and x.stride(0) >= x.shape[1] else x.contiguous()


def span(x: Tensor) -> int:
    """The bytes from a tensor's first number to its last, which may be fewer or more than it has numbers."""
    last = sum((n - 1) * stride for n, stride in zip(x.shape, x.stride(), strict=True))
    return (last + 1) * x.element_size() if x.numel() else 0


def as_float32(x: Tensor | None) -> Tensor | None:
    """A bias or a norm's parameter for the kernels: a few kilobytes, so a copy costs little compared with the op."""
    return None if x is None else x.to(torch.float32).contiguous()


def reduction_workspace(rows: int, columns: int) -> Tensor:
    """Memory for the partial sums of a reduction over rows."""
    return buffer(_native.extension().reduction_chunks(rows) * columns)


def native_dropout(threshold: int, seed: int, offset: int, site: int, rng: Tensor | None, rows: Tensor | None = None):
    """The kernels' Dropout object for the arguments that `_dropout_schema.arguments` made.

    ``rows`` (R,) int64, contiguous, are the numbers of an op's rows; they must live as long as the object.
    """
    if not 0 <= threshold <= 65536:
        raise InputError(f"expected a dropout's threshold of 0 to 65536, got {threshold}")
    if rng is not None:
        seed, offset = rng.tolist()
    return _native.extension().Dropout(
        seed=seed & 0xFFFFFFFFFFFFFFFF,
        offset=offset & 0xFFFFFFFF,
        site=site & 0xFFFFFFFF,
        threshold=threshold,
        row_numbers=pointer(rows),
    )
