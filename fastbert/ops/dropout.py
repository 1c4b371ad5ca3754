"""Dropout."""

from __future__ import annotations

from torch import Tensor

from .. import reference
from ..rng import Dropout
from . import _dispatch

_dispatch.register("dropout", "reference")(reference.dropout)


def dropout(x: Tensor, dropout: Dropout | None) -> Tensor:
    """Drops elements of x with probability p and scales the kept ones.

    Args:
        x: (..., C) floating; rows are numbered from 0 in memory order of the leading dimensions.
        dropout: its rate and place in the random stream (`DropoutKey.site`), or None for the identity.

    Returns:
        a tensor of the shape and dtype of x.

    Note:
        No mask is kept for the backward pass: it is drawn again.

    Ref:
        Srivastava et al. 2014; the mapping of random bits to elements is in `fastbert.reference.dropout`.
    """
    return x if dropout is None else _dispatch.call("dropout", x, dropout)
