"""Dense layer."""

from __future__ import annotations

from torch import Tensor

from .. import fp8, reference
from . import _dispatch, _invariant
from .linear_fp8 import linear_fp8


@_dispatch.register("linear", "reference")
def _reference(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return (_invariant.linear if _invariant.active() else reference.linear)(x, weight, bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b: x (..., K), weight (N, K), bias (N,) or None -> (..., N).

    A weight of the `fp8.Policy` in force multiplies in 8 bits (`linear_fp8`).
    """
    _invariant.check(x)
    site = fp8.site(weight)
    if site is not None:
        return linear_fp8(x, weight, bias, site)
    return _dispatch.call("linear", x, weight, bias)
