"""Layouts: how the tokens of a batch lie in memory, and thus which of them attend to each other.

Everything else in a layer works token by token; only the layout knows of sequences. `lay_out` chooses one for a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .. import ops
from ..errors import InputError
from ..packing import Packing
from ..rng import Dropout
from ..transforms import is_transformed
from .said import say_once


@dataclass(frozen=True)
class PackedLayout:
    """Sequences laid end to end.

    Args:
        cu_seqlens: (B+1,) int32, the sequences' bounds.
        max_seqlen: the length of the longest sequence.
        causal: a token attends to itself and those before it, otherwise to its whole sequence.
        bias: (nheads, 2R-1), as in `ops.attention`, or None.
    """

    cu_seqlens: Tensor
    max_seqlen: int
    causal: bool = False
    bias: Tensor | None = None

    def attend(self, q: Tensor, k: Tensor, v: Tensor, dropout: Dropout | None) -> tuple[Tensor, None]:
        """q, k, v (T, nheads, head_dim) -> context (T, nheads, head_dim); no probabilities are kept."""
        options = {"dropout": dropout, "causal": self.causal, "bias": self.bias}
        return ops.attention(q, k, v, self.cu_seqlens, self.max_seqlen, **options), None


@dataclass(frozen=True)
class PaddedLayout:
    """A padded (B, S) batch; padding is computed.

    Args:
        mask: additive, broadcastable to (B, nheads, S, S), or None.
        batch_size, seqlen: B and S.
        probabilities: whether the attention probabilities are returned.
    """

    mask: Tensor | None
    batch_size: int
    seqlen: int
    probabilities: bool

    def attend(self, q: Tensor, k: Tensor, v: Tensor, dropout: Dropout | None) -> tuple[Tensor, Tensor | None]:
        """q, k, v (B*S, nheads, head_dim) -> context of that shape, and probabilities (B, nheads, S, S) or None."""

        def heads_first(x: Tensor) -> Tensor:
            return x.unflatten(0, (self.batch_size, self.seqlen)).transpose(1, 2)

        options = {"dropout": dropout, "probabilities": self.probabilities}
        context, probs = ops.attention_padded(heads_first(q), heads_first(k), heads_first(v), self.mask, **options)
        return context.transpose(1, 2).flatten(0, 1), probs


Layout = PackedLayout | PaddedLayout


def with_bias(layout: Layout, bias_of: Callable[[int], Tensor]) -> Layout:
    """The layout with a bias on its scores that depends on a key's distance from the query.

    Args:
        bias_of: maps R to a bias (nheads, 2R-1) as in `ops.attention`.
    """
    if isinstance(layout, PackedLayout):
        return replace(layout, bias=bias_of(layout.max_seqlen))
    square = ops.relative_bias(bias_of(layout.seqlen), layout.seqlen)
    return replace(layout, mask=square[None] if layout.mask is None else square + layout.mask)


def _causal_mask(mask: Tensor | None, seqlen: int, device) -> Tensor:
    """An additive mask, broadcastable to (B, nheads, S, S), with -inf also at the keys after each query."""
    future = torch.ones(seqlen, seqlen, dtype=torch.bool, device=device).triu(1)
    if mask is None:
        mask = torch.zeros(1, 1, seqlen, seqlen, dtype=torch.float32, device=device)
    return mask.masked_fill(future, float("-inf"))


def additive_mask(keep: Tensor) -> Tensor:
    """keep (B, S) bool, the keys to keep -> (B, 1, 1, S) float32, 0 or -inf."""
    return _added_to_scores(keep)[:, None, None]


def _added_to_scores(mask: Tensor) -> Tensor:
    """A mask, bool (True = keep) or floating, in the additive form."""
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=torch.float32, device=mask.device).masked_fill(~mask, float("-inf"))


def wants_gradient(mask: Tensor) -> bool:
    """Whether a gradient of the mask is needed, as of a learned bias; its values then say nothing about its kind."""
    return mask.requires_grad and torch.is_grad_enabled()


def _read_keys(mask: Tensor) -> tuple[Tensor, Tensor]:
    """The keys (B or 1, S) bool that a 4-D mask keeps for the first query of the first head; and () bool, whether that
    describes the mask: it is the same for all queries and heads, and every value means keep or drop."""
    # Older code masks by -10000 in place of finfo.min; the softmax of such a score is 0 in any dtype.
    keep = mask if mask.dtype == torch.bool else mask == 0
    either = keep if mask.dtype == torch.bool else keep | (mask <= -1e4)
    first = keep[:, :1, :1]
    alike = (keep == first).all()
    return first[:, 0, 0], alike if mask.dtype == torch.bool else alike & either.all()


def keys_kept(mask: Tensor) -> Tensor | None:
    """Reads a 4-D mask that only says which keys count.

    Args:
        mask: (B or 1, heads or 1, S or 1, S), bool (True = keep) or additive (0 = keep, very negative = drop).

    Returns:
        (B or 1, S) bool; or None if queries or heads differ, a value means neither keep nor drop, or a gradient of the
        mask is needed, which packed tokens do not give.
    """
    if wants_gradient(mask):
        return None
    keep, is_all = _read_keys(mask)
    return keep if bool(is_all) else None


def say_padded(reason: str) -> None:
    """Warns, once for each reason, that a batch is computed with its padding.

    Raises:
        BackendError: in batch-invariant mode, where results would depend on the padding.
    """
    ops.refuse_variant(reason)
    warning = f"this batch takes the padded reference path, which computes pads too: {reason}"
    if torch.compiler.is_compiling():
        from .uncompiled import warn  # imports the compiler, which takes seconds

        warn(warning)
    else:
        say_once(warning)


def lay_out(
    attention_mask: Tensor | None,
    batch_size: int,
    seqlen: int,
    device,
    *,
    first_column: bool,
    probabilities: bool,
    causal: bool = False,
    distances: bool = False,
) -> tuple[Packing, Layout, Tensor | None]:
    """Decides how a (B, S) batch is computed: packed, unless something needs the whole rectangle.

    Args:
        attention_mask: None; (B, S) non-zero = keep; or 4-D, bool (True = keep) or additive.
        first_column: whether column 0 is read even if it is masked, as by transformers' pooler.
        probabilities: whether attention probabilities are needed.
        causal: a token attends only to itself and those before it, whatever else the mask says.
        distances: whether scores depend on the number of columns between two tokens, which packing must then keep.

    Returns:
        the packing of the tokens; their layout; and on the padded path the (B, S) bool tokens to keep, None for all.

    Raises:
        InputError: the mask has another shape, or is on the meta device.
    """
    _check_mask(attention_mask, batch_size, seqlen)

    def rectangle(mask: Tensor | None, keep: Tensor | None) -> tuple[Packing, PaddedLayout, Tensor | None]:
        mask = _causal_mask(mask, seqlen, device) if causal else mask
        return Packing.full(batch_size, seqlen, device), PaddedLayout(mask, batch_size, seqlen, probabilities), keep

    # A mask is compiled only into a whole graph, in which the host must not read it (`graphs.uncompiled_with_mask`).
    if is_transformed() or (attention_mask is not None and torch.compiler.is_compiling()):
        ops.refuse_variant("an export, torch.func and forward-mode differentiation take the padded path")
        return rectangle(*_without_a_look(attention_mask, (batch_size, seqlen)))
    keep = attention_mask
    if keep is not None and keep.dim() == 4:
        keep = keys_kept(attention_mask)
        if keep is None:
            what = "wants a gradient" if wants_gradient(attention_mask) else "differs between queries or heads"
            say_padded(f"the 4-D attention mask {what}, so tokens cannot be packed")
            return rectangle(_added_to_scores(attention_mask), None)
        keep = keep.expand(batch_size, seqlen)
    reason = "attention probabilities were asked for"
    if not probabilities:
        if keep is None:
            packing = Packing.full(batch_size, seqlen, device)
        else:
            packing = ops.read_mask(keep, first_column=first_column)
        reason = _why_padded(packing, distances)
        if reason is None:
            return packing, PackedLayout(packing.cu_seqlens, packing.max_seqlen, causal), None
    say_padded(reason)
    if keep is None:
        return rectangle(None, None)
    keep = keep != 0
    return rectangle(additive_mask(keep), keep)


def _why_padded(packing: Packing | None, distances: bool) -> str | None:
    """Why a batch that was packed so must be computed with its padding; None if it need not."""
    if packing is None:  # a masked token can only be computed in the padded batch
        return "the first token of a sequence is masked (left padding), and a pooler or a head may read it"
    if distances and not packing.keeps_distances():
        return "a token between others is masked, and scores depend on the distance of two tokens"
    return None


def _without_a_look(mask: Tensor | None, shape: tuple[int, int]) -> tuple[Tensor | None, Tensor | None]:
    """The additive mask and the (B, S) bool tokens to keep, without the host reading the mask's values, for exports and
    transforms. None for no mask, and for all tokens."""
    if mask is None:
        return None, None
    if mask.dim() == 2:
        keep = mask != 0
        return additive_mask(keep), keep
    if wants_gradient(mask):
        return mask, None
    keep, is_all = _read_keys(mask)
    return _added_to_scores(mask), (keep | ~is_all).expand(shape)


def with_first_column(keep: Tensor) -> Tensor:
    """keep (B, S) bool, with column 0 added in sequences that have tokens: the tokens whose outputs are returned if
    column 0 is read even when it is masked."""
    first = torch.arange(keep.shape[1], device=keep.device) == 0
    return keep | (first & keep.any(1, keepdim=True))


def _check_mask(mask: Tensor | None, batch_size: int, seqlen: int) -> None:
    """Raises InputError for a mask of another shape, or a 4-D one of integers, which might be bool or additive."""
    if mask is None:
        return
    if mask.is_meta:
        raise InputError("attention_mask: expected a tensor with numbers, got one on the meta device")
    if mask.dim() != 4 or mask.shape[-1] != seqlen:
        if mask.shape == (batch_size, seqlen):
            return
        raise InputError(
            f"attention_mask must be {(batch_size, seqlen)} or 4-D with {seqlen} keys, got {tuple(mask.shape)}"
        )
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise InputError(
            f"a 4-D attention_mask must be bool (True = keep) or floating (added to scores), got {mask.dtype}"
        )
    if mask.shape[0] not in (1, batch_size) or mask.shape[2] not in (1, seqlen):
        raise InputError(
            f"a 4-D attention_mask must be {(batch_size, 'heads or 1', seqlen, seqlen)} or 1 in place of the batch or "
            f"the queries, got {tuple(mask.shape)}"
        )
