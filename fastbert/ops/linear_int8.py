"""Dense layer with int8 weights, for inference."""

from __future__ import annotations

from torch import Tensor

from ..errors import InputError
from . import _dispatch


def linear_int8(
    x: Tensor,
    packed: Tensor,
    out_features: int,
    bias: Tensor | None = None,
    *,
    activation: str | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    """act(x W^T + bias) + residual; x is quantised by token and group of inputs, sums are exact int32.

    Args:
        x: (..., K) float32 or bfloat16.
        packed: W (N, K) as `pack_int8` of fastbert/ops/_cpu_int8.py made it, uint8.
        out_features: N.
        bias: (N,) or None.
        activation: None, "none" for GELU by the error function, "tanh" for its approximation.
        residual: (..., N) of x's dtype, or None.

    Returns:
        (..., N) of x's dtype. A token with a value that is not finite gives NaN.

    Raises:
        InputError: a gradient is asked for, or shapes do not fit.
    """
    if activation not in (None, "none", "tanh"):
        raise InputError(f"activation must be None, 'none' or 'tanh', got {activation!r}")
    return _dispatch.call("linear_int8", x, packed, out_features, bias, activation=activation, residual=residual)
