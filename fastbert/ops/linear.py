"""Dense layer."""

from __future__ import annotations

from collections.abc import Sequence

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


def second_derivatives(
    dout: Tensor, x: Tensor | None, weight: Tensor, upstream: Sequence[Tensor | None], wants: Sequence[bool]
) -> tuple[Tensor | None, ...]:
    """The gradients of a dense layer's gradients, which are dx = dout W, dW = dout^T x and db = the sum of dout's rows.

    Args:
        dout: (..., N), in whose dtype the products are computed.
        x, weight: (..., K) and (N, K); x may be None if dW is not differentiated.
        upstream: the gradients for dx, dW and db, or None for each.
        wants: whether those for dout, x and weight are wanted.

    Returns:
        The gradients for dout, x and weight; None for one that is zero or not wanted.
    """

    def product(a: Tensor, b: Tensor) -> Tensor:
        return _dispatch.call("linear", a, b, None)

    for_dx, for_dweight, for_dbias = (None if g is None else g.to(dout.dtype) for g in upstream)
    rows, weight = dout.reshape(-1, dout.shape[-1]), weight.to(dout.dtype)
    of_dout, of_x, of_weight = [], None, None
    if for_dx is not None:
        for_dx = for_dx.reshape(rows.shape[0], weight.shape[1])
        of_dout += [product(for_dx, weight)] if wants[0] else []
        of_weight = product(rows.t(), for_dx.t()) if wants[2] else None
    if for_dweight is not None:
        of_dout += [product(x.reshape(-1, x.shape[-1]).to(dout.dtype), for_dweight)] if wants[0] else []
        of_x = product(rows, for_dweight.t()).view(x.shape) if wants[1] else None
    if for_dbias is not None:
        of_dout += [for_dbias.expand(rows.shape)] if wants[0] else []
    return sum(of_dout[1:], of_dout[0]).reshape(dout.shape) if of_dout else None, of_x, of_weight
