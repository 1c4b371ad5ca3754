"""LayerNorm in one op with what comes before it, and when the module must be called as it is."""

from __future__ import annotations

from torch import Tensor, nn

from .. import ops
from ..rng import Dropout
from .linear import is_watched


def is_plain_norm(module: nn.Module) -> bool:
    """True for torch's own LayerNorm with weight and bias: no class of someone's, no adapter in its place."""
    if type(module) is not nn.LayerNorm:
        return False
    own = module._parameters  # in which a plain tensor in a parameter's place is not
    return own.get("weight", own) is not None and own.get("bias", own) is not None


def apply_norm(
    norm: nn.Module,
    x: Tensor,
    *,
    x_bias: Tensor | None = None,
    residual: Tensor | None = None,
    dropout: Dropout | None = None,
) -> Tensor:
    """norm(residual + dropout(x + x_bias)), in one op where the module is plain and nobody listens to it.

    Args:
        norm: an `nn.LayerNorm`, or what somebody put in its place.
        x: (T, H).
        x_bias: (H,), or None.
        residual: (T, H), or None.
        dropout: its rate and place in the random stream, or None.
    """
    if residual is not None:
        residual = residual.to(x.dtype)  # under autocast the first residual may be wider than the branch
    if is_plain_norm(norm) and not is_watched(norm):
        return ops.layer_norm(x, norm.weight, norm.bias, norm.eps, x_bias=x_bias, residual=residual, dropout=dropout)
    x = ops.dropout(x if x_bias is None else x + x_bias.to(x.dtype), dropout)
    return norm(x if residual is None else residual + x).to(x.dtype)
