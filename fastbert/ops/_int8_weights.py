"""Weights packed as int8 (csrc/include/gemm_int8.h): made, checked, and unpacked into plain tensors."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from .. import _native
from ..errors import InputError
from ..reference.linear_int8 import Int8Weight
from ..wording import dtype_name
from . import _cpu

_HEADER = 128  # bytes in front of the weights


def pack_int8(weight: Tensor, outliers: Tensor | None = None) -> Tensor:
    """Quantises and packs a weight.

    Args:
        weight: (N, K) floating, finite.
        outliers: (O,) columns that stay float32, or None.

    Returns:
        (bytes,) uint8, a format that only `linear_int8` and `unpack_int8` read.

    Raises:
        InputError: the weight is not a finite matrix on the CPU.
        BackendError: the C++ extension was not built.
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
    """(N, K) of a weight made by `pack_int8`. Raises InputError for anything else, which a kernel would read past."""
    is_bytes = packed.dtype == torch.uint8 and packed.dim() == 1 and packed.numel() >= _HEADER
    if not is_bytes or packed.device.type != "cpu":  # the header is read by the host, wherever the bytes are
        raise InputError(f"expected a weight packed by pack_int8, on the CPU, got {_describe(packed)}")
    packed = packed.contiguous()
    if not _native.why_missing() and not _native.extension().is_packed_int8(packed.data_ptr(), packed.numel()):
        raise InputError(f"expected a weight packed by pack_int8, got {_describe(packed)} with another beginning")
    return tuple(packed[:16].numpy().view(np.int64).tolist())


def readable(packed: Tensor) -> Tensor:
    """The packed weight where kernels can read it: without gaps, from a multiple of 64 bytes on; itself or a copy."""
    packed = packed.contiguous()
    return packed.clone() if packed.data_ptr() % 64 else packed  # torch's own memory starts there


def unpack_int8(packed: Tensor) -> Int8Weight:
    """What `pack_int8` made, in plain tensors.

    Args:
        packed: uint8, from `pack_int8`; its contents are not checked.

    Returns:
        an `Int8Weight`: q (N, K) int8, scale (groups, N) float32, the group size, and the columns that stay float32.
    """
    raw = packed.contiguous().numpy()
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


def _describe(x: Tensor) -> str:
    return f"{dtype_name(x.dtype)} {tuple(x.shape)} on {x.device}"
