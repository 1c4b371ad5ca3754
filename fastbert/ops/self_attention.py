"""Query, key and value projections with the attention that follows, of packed sequences."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from .. import reference
from ..errors import InputError
from ..rng import Dropout
from . import _dispatch
from .linear import check_dtypes


def self_attention(
    x: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    cu_seqlens: Tensor,
    max_seqlen: int,
    nheads: int,
    *,
    dropout: Dropout | None = None,
    causal: bool = False,
) -> Tensor:
    """attention(x W_q^T + b_q, x W_k^T + b_k, x W_v^T + b_v), the scores over sqrt(head_dim).

    Only worth calling where `_dispatch.is_fused` says that a backend fuses it.

    Args:
        x: (T, H) floating, sequences laid end to end.
        weights: of query, key and value, (nheads * head_dim, H) each. biases: (nheads * head_dim,) each.
        cu_seqlens, max_seqlen, dropout, causal: as `attention` takes them.
        nheads: heads of the attention.

    Returns:
        (T, nheads * head_dim), dtype of the products.

    Raises:
        InputError: shapes that do not fit, x and weights of two dtypes without autocast.

    Ref:
        Vaswani et al. 2017, section 3.2.2.
    """
    shapes = [tuple(t.shape) for t in (*weights, *biases)]
    size = shapes[0][0] if shapes else 0
    if shapes != [(size, x.shape[-1])] * 3 + [(size,)] * 3 or x.dim() != 2 or nheads < 1 or size % nheads:
        raise InputError(
            f"self_attention takes x (T, H), three weights (nheads * head_dim, H) and as many biases, got "
            f"{tuple(x.shape)} and {shapes} for {nheads} heads"
        )
    for weight in weights:
        check_dtypes(x, weight)
    options = {"dropout": dropout, "causal": causal}
    return _dispatch.call("self_attention", x, weights, biases, cu_seqlens, max_seqlen, nheads, **options)


@_dispatch.register("self_attention", "reference")
def _self_attention(x, weights, biases, cu_seqlens, max_seqlen, nheads, **options) -> Tensor:
    linears = (reference.linear(x, *parts) for parts in zip(weights, biases, strict=True))
    q, k, v = (y.unflatten(-1, (nheads, -1)) for y in linears)
    return reference.attention(q, k, v, cu_seqlens, max_seqlen, **options).flatten(-2)
