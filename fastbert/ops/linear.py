"""Dense layer."""

from __future__ import annotations

from torch import Tensor

from .. import reference
from . import _dispatch

_dispatch.register("linear", "reference")(reference.linear)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b: x (..., K), weight (N, K), bias (N,) or None -> (..., N)."""
    return _dispatch.call("linear", x, weight, bias)
