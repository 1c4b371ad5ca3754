"""Dropout."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .. import reference
from ..errors import InputError
from ..rng import Dropout
from ..wording import dtype_name
from . import _dispatch

_dispatch.register("dropout", "reference")(reference.dropout)


def dropout(x: Tensor, dropout: Dropout | None, rows: Tensor | None = None) -> Tensor:
    """Drops elements of x with probability p and scales the kept ones.

    Args:
        x: (..., C) floating.
        dropout: its rate and place in the random stream (`DropoutKey.site`), or None for the identity.
        rows: (R,) int64 on the device of x, the numbers of its R rows in the random stream, in memory order of the
            leading dimensions; by default 0, 1, 2, ... Some rows of a tensor then drop what they drop as parts of it.

    Returns:
        a tensor of the shape and dtype of x.

    Raises:
        InputError: ``rows`` has not a number for each row of x, another dtype, or is on another device.

    Note:
        No mask is kept for the backward pass: it is drawn again.

    Ref:
        Srivastava et al. 2014; the mapping of random bits to elements is in `fastbert.reference.dropout`.
    """
    check_rows(rows, x)
    return x if dropout is None else _dispatch.call("dropout", x, dropout, rows)


def check_rows(rows: Tensor | None, x: Tensor) -> None:
    """Raises InputError unless ``rows`` is None or has a number for each row of x (..., C)."""
    if rows is None:
        return
    count = math.prod(x.shape[:-1])  # Size.numel() would turn a symbolic size into an int
    if rows.shape != (count,) or rows.dtype != torch.int64 or rows.device != x.device:
        got = f"{tuple(rows.shape)} {dtype_name(rows.dtype)} on {rows.device}"
        raise InputError(f"rows must be the numbers of the {count} rows of x, int64 on {x.device}, got {got}")
