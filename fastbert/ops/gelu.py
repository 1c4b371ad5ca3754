"""Bias + GELU."""

from __future__ import annotations

from torch import Tensor

from .. import reference
from ..errors import InputError
from . import _dispatch

_dispatch.register("gelu", "reference")(reference.gelu)


def gelu(x: Tensor, bias: Tensor | None = None, approximate: str = "none") -> Tensor:
    """GELU(x + bias).

    Args:
        x: (..., F) floating.
        bias: (F,) floating, or None.
        approximate: "none" = x * Phi(x) with the error function; "tanh" = the approximation of google-research/bert.

    Returns:
        (..., F), dtype of x.

    Raises:
        InputError: another ``approximate``, or a bias of another length.

    Ref:
        Hendrycks & Gimpel 2016, "Gaussian Error Linear Units", section 2.
    """
    if approximate not in ("none", "tanh"):
        raise InputError(f'approximate must be "none" or "tanh", got {approximate!r}')
    if bias is not None and bias.shape != x.shape[-1:]:
        raise InputError(f"bias must have shape {tuple(x.shape[-1:])} for x {tuple(x.shape)}, got {tuple(bias.shape)}")
    return _dispatch.call("gelu", x, bias, approximate)
