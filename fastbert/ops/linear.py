"""Dense layer."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import fp8, reference
from ..errors import InputError
from ..wording import dtype_name
from . import _dispatch, _invariant
from .linear_fp8 import linear_fp8


@_dispatch.register("linear", "reference")
def _reference(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return (_invariant.linear if _invariant.active() else reference.linear)(x, weight, bias)


def check_dtypes(x: Tensor, weight: Tensor) -> None:
    """Raises InputError where torch's own dense layer would refuse to multiply the two: kernels might convert."""
    if x.dtype != weight.dtype and not torch.is_autocast_enabled(x.device.type):
        got, expected = (dtype_name(t.dtype) for t in (x, weight))
        raise InputError(
            f"hidden states must have the dtype of the weights, {expected}, got {got}: convert one of them, or compute "
            f"under torch.autocast"
        )


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b: x (..., K), weight (N, K), bias (N,) or None -> (..., N).

    Weights that the active `fp8.Policy` names are multiplied in 8 bits (`linear_fp8`).

    Raises:
        InputError: shapes do not fit, or x and weight have two dtypes without autocast.
    """
    # Kernels read by these sizes: what is shorter would be read beyond its end.
    if weight.dim() != 2 or x.shape[-1:] != weight.shape[1:]:
        raise InputError(f"x must be (..., K) and weight (N, K), got {tuple(x.shape)} and {tuple(weight.shape)}")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise InputError(f"bias must have shape {tuple(weight.shape[:1])}, got {tuple(bias.shape)}")
    check_dtypes(x, weight)
    _invariant.check(x)
    site = fp8.site(weight)
    if site is not None:
        return linear_fp8(x, weight, bias, site)
    return _dispatch.call("linear", x, weight, bias)
