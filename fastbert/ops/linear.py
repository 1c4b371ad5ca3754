"""Dense layer."""

from __future__ import annotations

from torch import Tensor

from .. import reference
from . import _dispatch, _invariant


@_dispatch.register("linear", "reference")
def _reference(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return (_invariant.linear if _invariant.active() else reference.linear)(x, weight, bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b: x (..., K), weight (N, K), bias (N,) or None -> (..., N)."""
    _invariant.check(x)
    return _dispatch.call("linear", x, weight, bias)
