"""Dropout whose mask is a pure function of (seed, offset, site, row, column).

    y[r, c] = x[r, c] * scale   if bits(r, c) >= threshold   else 0

bits(r, c): 16 bits from Philox 4x32-10 (Salmon et al., SC 2011, section 3.3) under the key (seed low, seed high) at
the counter (c // 8, r, site, offset). Its four 32-bit words hold eight 16-bit halves, low half first, for columns
8(c//8) to 8(c//8) + 7. One generator call thus feeds eight elements; p is met to 1/131072.
"""

from __future__ import annotations

import torch
from torch import Tensor

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW32 = 0xFFFFFFFF


def philox_4x32(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[int, int]) -> list[Tensor]:
    """Ten rounds of Philox 4x32.

    Args:
        counter: four int64 tensors of one broadcastable shape, each value in 0..2^32-1.
        key: two integers in 0..2^32-1.

    Returns:
        Four int64 tensors with values in 0..2^32-1.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        # int64 products wrap modulo 2^64, which leaves both 32-bit halves right.
        product0 = c0 * _MULTIPLIERS[0]
        product1 = c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            ((product1 >> 32) & _LOW32) ^ c1 ^ k0,
            product1 & _LOW32,
            ((product0 >> 32) & _LOW32) ^ c3 ^ k1,
            product0 & _LOW32,
        )
        k0 = (k0 + _WEYL[0]) & _LOW32
        k1 = (k1 + _WEYL[1]) & _LOW32
    return [c0, c1, c2, c3]


def keep_mask(rows: Tensor, num_columns: int, dropout) -> Tensor:
    """Which elements are kept.

    Args:
        rows: (R,) int64, the row number of each row, below 2^32.
        num_columns: C.
        dropout: an object with ``seed``, ``offset``, ``site`` and ``threshold``, and with ``state``, which holds seed
            and offset where those are None (`fastbert.rng.Dropout`).

    Returns:
        (R, C) bool.
    """
    num_blocks = (num_columns + 7) // 8
    seed, offset = (dropout.seed, dropout.offset) if dropout.seed is not None else dropout.state.to(rows.device)
    block = torch.arange(num_blocks, device=rows.device).expand(rows.numel(), num_blocks)
    counter = (
        block,
        (rows & _LOW32)[:, None].expand_as(block),
        torch.full_like(block, dropout.site & _LOW32),
        torch.zeros_like(block) + (offset & _LOW32),
    )
    words = philox_4x32(counter, (seed & _LOW32, (seed >> 32) & _LOW32))
    halves = torch.stack([half for word in words for half in (word & 0xFFFF, word >> 16)], dim=-1)
    return (halves >= dropout.threshold).reshape(rows.numel(), num_blocks * 8)[:, :num_columns]


def dropout(x: Tensor, dropout, rows: Tensor | None = None) -> Tensor:
    """Drops elements of x.

    Args:
        x: (..., C).
        dropout: `fastbert.rng.Dropout`, or None for the identity.
        rows: (R,) int64, the row numbers of x in memory order of the leading dimensions; by default 0, 1, 2, ...
    """
    if dropout is None:
        return x
    if rows is None:
        rows = torch.arange(x.numel() // x.shape[-1] if x.numel() else 0, device=x.device)
    keep = keep_mask(rows, x.shape[-1], dropout)
    return x.masked_fill(~keep.reshape(x.shape), 0.0) * dropout.scale
