"""Dense layer with int8 weights, for inference."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import reference
from ..errors import InputError
from . import _dispatch
from ._int8_weights import packed_shape, unpack_int8


def check(x: Tensor, packed: Tensor, n: int, bias: Tensor | None, residual: Tensor | None) -> None:
    """Raises InputError where shapes do not fit, or a gradient is asked for."""
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, bias, residual)):
        raise InputError("int8 weights have no gradient: expected inputs that need none, or torch.no_grad()")
    if not torch.compiler.is_compiling():
        held = list(packed_shape(packed))
        if held != [n, x.shape[-1]]:
            raise InputError(
                f"x must be (..., K) for a packed weight [N, K] = {held}, got {tuple(x.shape)} and N = {n}"
            )
    if bias is not None and bias.shape != (n,):
        raise InputError(f"bias must have shape {(n,)}, got {tuple(bias.shape)}")
    if residual is not None and residual.shape != (*x.shape[:-1], n):
        raise InputError(f"residual must be {(*x.shape[:-1], n)}, got {tuple(residual.shape)}")


@_dispatch.register("linear_int8", "reference")
def _reference(x: Tensor, packed: Tensor, n: int, bias=None, *, activation=None, residual=None) -> Tensor:
    return reference.linear_int8(x, unpack_int8(packed), bias, activation, residual).to(x.dtype)


def linear_int8(
    x: Tensor,
    packed: Tensor,
    out_features: int,
    bias: Tensor | None = None,
    *,
    activation: str | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    """act(x W^T + bias) + residual. x is quantised with a scale per token and group of inputs; sums are exact in int32.

    Args:
        x: (..., K) float32 or bfloat16.
        packed: W (N, K) as `pack_int8` made it, uint8.
        out_features: N.
        bias: (N,) floating, or None.
        activation: None, or the form of GELU: "none" with the error function, "tanh" approximated.
        residual: (..., N) of x's dtype, or None.

    Returns:
        (..., N) of x's dtype. A token with a value that is not finite gives NaN.

    Raises:
        InputError: a gradient is asked for, or shapes do not fit.
    """
    if activation not in (None, "none", "tanh"):
        raise InputError(f"activation must be None, 'none' or 'tanh', got {activation!r}")
    check(x, packed, out_features, bias, residual)
    return _dispatch.call("linear_int8", x, packed, out_features, bias, activation=activation, residual=residual)
