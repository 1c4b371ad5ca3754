"""How the tokens of a batch lie in memory, and so how they attend to each other.

Everything else in a layer is token by token; a layout is the one thing that knows of sequences.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .. import ops
from ..rng import Dropout


@dataclass(frozen=True)
class PackedLayout:
    """Sequences end to end: cu_seqlens (B+1,) int32, max_seqlen tokens in the longest; a token sees its whole sequence,
    or where the layout is causal itself and those before it."""

    cu_seqlens: Tensor
    max_seqlen: int
    causal: bool = False

    def attend(self, q: Tensor, k: Tensor, v: Tensor, dropout: Dropout | None) -> tuple[Tensor, None]:
        """q, k, v (T, nheads, head_dim) -> context (T, nheads, head_dim); no probabilities are kept."""
        options = {"dropout": dropout, "causal": self.causal}
        return ops.attention(q, k, v, self.cu_seqlens, self.max_seqlen, **options), None


@dataclass(frozen=True)
class PaddedLayout:
    """A (B, S) rectangle under an additive mask (broadcastable to (B, nheads, S, S)) or None; pads are computed."""

    mask: Tensor | None
    batch_size: int
    seqlen: int

    def attend(self, q: Tensor, k: Tensor, v: Tensor, dropout: Dropout | None) -> tuple[Tensor, Tensor]:
        """q, k, v (B*S, nheads, head_dim) -> context of that shape, and probabilities (B, nheads, S, S)."""

        def heads_first(x: Tensor) -> Tensor:
            return x.unflatten(0, (self.batch_size, self.seqlen)).transpose(1, 2)

        mask = None if self.mask is None else self.mask.to(q.dtype)
        context, probs = ops.attention_padded(heads_first(q), heads_first(k), heads_first(v), mask, dropout=dropout)
        return context.transpose(1, 2).flatten(0, 1), probs


Layout = PackedLayout | PaddedLayout


def causal_mask(mask: Tensor | None, seqlen: int, device) -> Tensor:
    """An additive mask, or None, with what comes after a query at -inf too: broadcastable to (B, nheads, S, S)."""
    future = torch.ones(seqlen, seqlen, dtype=torch.bool, device=device).triu(1)
    if mask is None:
        mask = torch.zeros(1, 1, seqlen, seqlen, dtype=torch.float32, device=device)
    return mask.masked_fill(future, float("-inf"))


def additive_mask(keep: Tensor) -> Tensor:
    """(B, S) keys to keep -> (B, 1, 1, S) float32, 0 or -inf."""
    mask = torch.zeros(keep.shape, dtype=torch.float32, device=keep.device)
    return mask.masked_fill(~keep, float("-inf"))[:, None, None]


def wants_gradient(mask: Tensor) -> bool:
    """Whether a mask is a bias that is learned, whatever its numbers are now."""
    return mask.requires_grad and torch.is_grad_enabled()


def keys_kept(mask: Tensor) -> Tensor | None:
    """Reads a 4-D mask that only says which keys count.

    Args:
        mask: (B or 1, heads or 1, S or 1, S), bool (True = keep) or additive (0 = keep, very negative = drop).

    Returns:
        (B or 1, S) bool, or None where queries or heads differ, a value is neither keep nor drop, or the mask is
        learned: what is packed has no gradient for it.
    """
    if wants_gradient(mask):
        return None
    keep = mask if mask.dtype == torch.bool else mask == 0
    if mask.dtype != torch.bool:
        # -10000 is what code before finfo.min used; the softmax of such a score is 0 in any dtype.
        dropped = mask <= -1e4
        if not bool((keep | dropped).all()):
            return None
    first = keep[:, :1, :1]
    if not bool((keep == first).all()):
        return None
    return first[:, 0, 0]
