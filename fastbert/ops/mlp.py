"""Both dense layers of a feed-forward block."""

from __future__ import annotations

from torch import Tensor

from .. import reference
from . import _dispatch
from ._product_dtypes import check_dtypes


def mlp(x: Tensor, weight1: Tensor, bias1: Tensor, weight2: Tensor, approximate: str = "none") -> Tensor:
    """gelu(x W1^T + b1) W2^T; the second bias is left to the op that follows.

    Only worth calling if a backend fuses it: ``is_fused("mlp", ...)``.

    Args:
        x: (..., H) floating.
        weight1, bias1: (F, H) and (F,).
        weight2: (H, F).
        approximate: the form of GELU, "none" or "tanh".

    Returns:
        (..., H), dtype of x, or the one that autocast gives to products.

    Raises:
        InputError: x and the weights have two dtypes without autocast.

    Ref:
        Vaswani et al. 2017, equation 2, with the GELU of Hendrycks & Gimpel 2016.
    """
    for weight in (weight1, weight2):
        check_dtypes(x, weight)
    return _dispatch.call("mlp", x, weight1, bias1, weight2, approximate)


@_dispatch.register("mlp", "reference")
def _mlp(x: Tensor, weight1: Tensor, bias1: Tensor, weight2: Tensor, approximate: str = "none") -> Tensor:
    return reference.linear(reference.gelu(reference.linear(x, weight1), bias1, approximate), weight2)
