"""Dense layer."""

from __future__ import annotations

from torch import Tensor

from .. import fp8, reference
from ..errors import InputError
from . import _dispatch, _invariant
from ._product_dtypes import check_dtypes
from .linear_fp8 import linear_fp8


@_dispatch.register("linear", "reference")
def linear_by_torch(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`linear` by torch's product, in batch-invariant mode row by row."""
    return (_invariant.linear if _invariant.active() else reference.linear)(x, weight, bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b. Weights that the active `fp8.Policy` names are multiplied in 8 bits (`linear_fp8`).

    Args:
        x: (..., K) floating.
        weight: (N, K) floating.
        bias: (N,) floating, or None.

    Returns:
        (..., N), dtype of x, or the one that autocast gives to products.

    Raises:
        InputError: shapes do not fit, or x and weight have two dtypes without autocast.
        BackendError: in batch-invariant mode, on another device than the CPU or in a compiled model.
    """
    # Kernels read by these sizes, so a tensor that is shorter would be read past its end.
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
