"""Attention of a rectangular batch under an arbitrary mask: what packing cannot express."""

from __future__ import annotations

from torch import Tensor

from .. import reference
from ..errors import InputError
from ..rng import Dropout
from . import _dispatch, _invariant


@_dispatch.register("attention_padded", "reference")
def _reference(*args, probabilities: bool, **options) -> tuple[Tensor, Tensor | None]:
    out, probs = reference.attention_padded(*args, **options)
    return out, probs if probabilities else None


def attention_padded(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    *,
    softmax_scale: float | None = None,
    dropout: Dropout | None = None,
    probabilities: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """dropout(softmax(scale * Q K^T + mask)) V, and the probabilities before dropout.

    Args:
        q, k, v: (B, nheads, S, head_dim) floating.
        mask: floating, added to the scores in the dtype of q, broadcastable to (B, nheads, S, S); or None. A query
            whose keys are all at -inf gets zeros.
        softmax_scale, dropout: as in `attention`; the row of a token is its index in the flattened (B, S) batch.
        probabilities: whether they are returned. Without them and without dropout, no (S, S) matrix is kept on a CPU.

    Returns:
        the output (B, nheads, S, head_dim), dtype of q, and the probabilities (B, nheads, S, S) or None.

    Raises:
        InputError: q, k and v do not have one shape of four dimensions.
        BackendError: in batch-invariant mode.
    """
    if q.dim() != 4 or q.shape != k.shape or q.shape != v.shape:
        raise InputError(f"q, k and v must all be (B, nheads, S, head_dim), got {[tuple(x.shape) for x in (q, k, v)]}")
    _invariant.refuse("a batch took the padded path (a mask of queries, attention probabilities, or computed pads)")
    mask = None if mask is None else mask.to(q.dtype)
    options = {"softmax_scale": softmax_scale, "dropout": dropout, "probabilities": probabilities}
    return _dispatch.call("attention_padded", q, k, v, mask, **options)
