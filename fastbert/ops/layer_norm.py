"""Dropout + residual + LayerNorm."""

from __future__ import annotations

from torch import Tensor

from .. import reference
from ..errors import InputError
from ..rng import Dropout
from . import _dispatch
from .dropout import check_rows

_dispatch.register("layer_norm", "reference")(reference.layer_norm)


def layer_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    *,
    x_bias: Tensor | None = None,
    residual: Tensor | None = None,
    dropout: Dropout | None = None,
    rows: Tensor | None = None,
) -> Tensor:
    """LN(residual + dropout(x + x_bias)): what follows each branch of a post-LN layer.

    Args:
        x: (..., H) floating, the branch's output.
        weight, bias: (H,) scale and shift.
        eps: added to the variance.
        x_bias: (H,) added to x before the dropout, or None.
        residual: (..., H) added after the dropout, or None.
        dropout: its rate and place in the random stream (`DropoutKey.site`), or None.
        rows: (R,) int64, the numbers of x's rows in the random stream (`ops.dropout`); by default 0, 1, 2, ...

    Returns:
        (..., H), dtype of x; statistics are float32 (float64 for float64).

    Raises:
        InputError: the residual, a parameter or ``rows`` has another shape, or the weight or bias is missing.

    Ref:
        Ba et al. 2016; Vaswani et al. 2017, section 5.4.
    """
    for name, parameter in (("weight", weight), ("bias", bias), ("x_bias", x_bias)):
        if parameter is None and name == "x_bias":
            continue
        if parameter is None or parameter.shape != x.shape[-1:]:
            got = None if parameter is None else tuple(parameter.shape)
            raise InputError(f"{name} must have shape {tuple(x.shape[-1:])}, got {got}")
    if residual is not None and residual.shape != x.shape:
        raise InputError(f"residual must have the shape of x {tuple(x.shape)}, got {tuple(residual.shape)}")
    check_rows(rows, x)
    options = {"x_bias": x_bias, "residual": residual, "dropout": dropout, "rows": rows}
    return _dispatch.call("layer_norm", x, weight, bias, eps, **options)
