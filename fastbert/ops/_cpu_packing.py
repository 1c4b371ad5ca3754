"""Reading an attention mask on the CPU in one pass, for which torch needs twenty ops."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import _native
from ..packing import Packing
from . import _cpu, _dispatch
from .packing import read_mask_by_torch


def _accepts(mask: Tensor, first_column: bool) -> str | None:
    return _cpu.why_not_device(mask)


@_dispatch.register("read_mask", "cpu", available=_native.why_missing, accepts=_accepts)
def read_mask(mask: Tensor, first_column: bool) -> Packing | None:
    if torch.compiler.is_compiling() or type(mask) is not Tensor or mask.dtype.is_complex or mask.is_quantized:
        return read_mask_by_torch(mask, first_column)  # no values to read, or in another format
    mask = mask.contiguous()
    batch_size, seqlen = mask.shape
    # One more than there are tokens: the kernel also writes the index of a token that is not kept, to be overwritten.
    indices, bounds = _cpu.buffer(mask.numel() + 1, torch.int64), _cpu.buffer(batch_size + 1, torch.int32)
    outputs = indices.data_ptr(), bounds.data_ptr()
    tokens, shortest, longest, first_masked = _native.extension().read_mask(
        mask.data_ptr(), mask.element_size(), mask.is_floating_point(), batch_size, seqlen, *outputs
    )
    if first_column and first_masked:
        return None
    return Packing(indices[:tokens], bounds, shortest, longest, batch_size, seqlen)
