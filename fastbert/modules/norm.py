"""LayerNorm fused with what comes before it, unless the module itself must be called."""

from __future__ import annotations

from torch import Tensor, nn

from .. import ops
from ..rng import Dropout
from .linear import is_watched


def is_plain_norm(module: nn.Module) -> bool:
    """Whether a module is torch's own LayerNorm class, with weight and bias, and not a subclass or an adapter."""
    if type(module) is not nn.LayerNorm:
        return False
    own = module._parameters  # does not have a plain tensor that replaced a parameter
    return own.get("weight", own) is not None and own.get("bias", own) is not None


def apply_norm(
    norm: nn.Module,
    x: Tensor,
    *,
    x_bias: Tensor | None = None,
    residual: Tensor | None = None,
    dropout: Dropout | None = None,
    rows: Tensor | None = None,
) -> Tensor:
    """norm(residual + dropout(x + x_bias)), in one op if the module is plain and has no hooks.

    Args:
        norm: an `nn.LayerNorm`, or a module in its place.
        x: (T, H).
        x_bias: (H,), or None.
        residual: (T, H), or None.
        dropout: its rate and place in the random stream, or None.
        rows: (T,) int64, the numbers of x's rows in the random stream; None for 0, 1, 2, ...

    Returns:
        (T, H), dtype of x.
    """
    if residual is not None:
        residual = residual.to(x.dtype)  # under autocast the first residual may be wider than the branch
    if is_plain_norm(norm) and not is_watched(norm):
        added = {"x_bias": x_bias, "residual": residual, "dropout": dropout, "rows": rows}
        return ops.layer_norm(x, norm.weight, norm.bias, norm.eps, **added)
    x = ops.dropout(x if x_bias is None else x + x_bias.to(x.dtype), dropout, rows)
    return norm(x if residual is None else residual + x).to(x.dtype)
