"""Dense layers beside the Triton kernels: torch's own products, which are cuBLAS's on a GPU."""

from __future__ import annotations

from torch import Tensor

from .. import reference
from . import _dispatch, _triton


def _accepts(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> str | None:
    return _triton.why_not(x, parameters=(weight, bias))


_dispatch.register("linear", "triton", available=_triton.why_missing, accepts=_accepts)(reference.linear)
