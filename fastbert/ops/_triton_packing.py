"""Reading an attention mask in the Triton backend: by torch, as its dense layers are."""

from __future__ import annotations

from torch import Tensor

from . import _dispatch, _triton
from .packing import read_mask_by_torch


def _accepts(mask: Tensor, first_column: bool) -> str | None:
    return _triton.why_not_device(mask)


_dispatch.register("read_mask", "triton", available=_triton.why_missing, accepts=_accepts)(read_mask_by_torch)
