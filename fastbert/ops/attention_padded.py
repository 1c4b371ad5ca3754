"""Attention of a rectangular batch under an arbitrary mask: what packing cannot express."""

from __future__ import annotations

from torch import Tensor

from .. import reference
from ..errors import InputError
from ..rng import Dropout
from . import _dispatch, _invariant

_dispatch.register("attention_padded", "reference")(reference.attention_padded)


def attention_padded(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    *,
    softmax_scale: float | None = None,
    dropout: Dropout | None = None,
) -> tuple[Tensor, Tensor]:
    """dropout(softmax(scale * Q K^T + mask)) V, and the probabilities before dropout.

    Args:
        q, k, v: (B, nheads, S, head_dim) floating.
        mask: additive, broadcastable to (B, nheads, S, S), or None. A query whose keys are all at -inf gets zeros.
        softmax_scale, dropout: as in `attention`; the row of a token is its place in the (B, S) batch.

    Returns:
        (B, nheads, S, head_dim) and (B, nheads, S, S).

    Raises:
        InputError: shapes that do not fit.
    """
    if q.dim() != 4 or q.shape != k.shape or q.shape != v.shape:
        raise InputError(f"q, k and v must all be (B, nheads, S, head_dim), got {[tuple(x.shape) for x in (q, k, v)]}")
    _invariant.refuse("a batch took the padded path (a mask of queries, attention probabilities, or computed pads)")
    return _dispatch.call("attention_padded", q, k, v, mask, softmax_scale=softmax_scale, dropout=dropout)
