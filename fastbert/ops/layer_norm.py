"""Dropout + residual + LayerNorm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from .. import reference
from ..errors import InputError
from ..rng import Dropout
from . import _dispatch, _gradients
from ._double_backward import differentiable
from ._gradients import LayerNormGradients
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


# Shared by the CPU and Triton ops. Their second output is the sum that is normalised. It is differentiable, since the
# gradient depends on it: it gets a gradient itself in the backward pass of a gradient.
def gradient_by(
    kernel: Callable[..., LayerNormGradients],
    dropout_of: Callable[..., tuple[Dropout | None, Tensor | None]],
    rest: int,
) -> Callable[..., tuple[Tensor | None, ...]]:
    """The ``backward`` of an op with the inputs x, weight, bias, eps, x_bias, residual and ``rest`` others.

    Args:
        kernel: called with ctx, the saved tensors and the gradient of the result.
        dropout_of: called with ctx and the saved tensors; returns the op's dropout and the numbers of its rows.
    """

    def arranged(ctx: Any, found: LayerNormGradients) -> tuple[Tensor | None, ...]:
        dresidual, dx_bias = found.residual if ctx.has_residual else None, found.x_bias if ctx.has_x_bias else None
        return found.x, found.weight, found.bias, None, dx_bias, dresidual, *(None,) * rest

    def gradients(
        of_result: Callable[..., LayerNormGradients], ctx: Any, saved: Any, dout: Tensor | None, dtotal: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        found = LayerNormGradients() if dout is None else of_result(ctx, saved, dout)
        if dtotal is not None:
            found = found.plus(_gradients.layer_norm_sum(dtotal.reshape(ctx.shape), *dropout_of(ctx, saved)))
        return arranged(ctx, found)

    def by_reference(ctx: Any, saved: Any, dout: Tensor) -> LayerNormGradients:
        total, _mean, _rstd, weight, *_ = saved
        return _gradients.layer_norm(dout, total.view(ctx.shape), weight, ctx.eps, *dropout_of(ctx, saved))

    def again(ctx: Any, saved: Any, dout: Tensor | None, dtotal: Tensor | None, *_) -> tuple[Tensor | None, ...]:
        return gradients(by_reference, ctx, saved, dout, dtotal)

    @differentiable(again)
    def backward(ctx: Any, saved: Any, dout: Tensor | None, dtotal: Tensor | None, *_) -> tuple[Tensor | None, ...]:
        return gradients(kernel, ctx, saved, dout, dtotal)

    return backward
