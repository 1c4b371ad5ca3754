"""The key-value cache of generation: keys and values of the tokens so far, so that only the next token is computed.

Two layouts write and read it, so that the decoder's layers need not know of it. In a pass, each layer calls ``attend``
once, in order.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..rng import Dropout
from .layout import PackedLayout


class KeyValueCache:
    """The keys and values of up to ``capacity`` tokens of each of B sequences in every layer, filled from the left.

    Args:
        layers, nheads, head_dim: those of the decoder.
        batch_size, capacity: the number of sequences, and of the tokens that each will have at most.
        device, dtype: those of the keys and values.
    """

    def __init__(
        self, layers: int, nheads: int, head_dim: int, batch_size: int, capacity: int, *, device, dtype
    ) -> None:
        shape = (layers, batch_size, nheads, capacity, head_dim)
        self.keys = torch.zeros(shape, device=device, dtype=dtype)
        self.values = torch.zeros(shape, device=device, dtype=dtype)
        self.lengths = torch.zeros(batch_size, dtype=torch.int64, device=device)

    def first(self, cu_seqlens: Tensor, max_seqlen: int) -> FirstPass:
        """The layout of a pass over the prompts, whose keys and values it keeps."""
        return FirstPass(self, cu_seqlens, max_seqlen)

    def step(self) -> NextPass:
        """The layout of a pass over one more token of each sequence."""
        return NextPass(self)


class FirstPass:
    """The pass over the packed prompts: causal attention by the kernels; all keys and values are kept."""

    def __init__(self, cache: KeyValueCache, cu_seqlens: Tensor, max_seqlen: int) -> None:
        self._cache, self._layer = cache, 0
        self._packed = PackedLayout(cu_seqlens, max_seqlen, causal=True)
        cache.lengths = cu_seqlens.diff().long()
        total = int(cu_seqlens[-1])
        self._sequence = torch.repeat_interleave(cache.lengths, output_size=total)
        self._place = torch.arange(total, device=cu_seqlens.device) - cu_seqlens[:-1].long()[self._sequence]

    def attend(self, q: Tensor, k: Tensor, v: Tensor, dropout: Dropout | None) -> tuple[Tensor, None]:
        """q, k, v (T, nheads, head_dim) -> context (T, nheads, head_dim); no probabilities are kept."""
        for kept, new in ((self._cache.keys, k), (self._cache.values, v)):
            kept[self._layer][self._sequence, :, self._place] = new.to(kept.dtype)
        self._layer += 1
        return self._packed.attend(q, k, v, dropout)


class NextPass:
    """A pass over one token of each sequence, which attends to all tokens before it."""

    def __init__(self, cache: KeyValueCache) -> None:
        self._cache, self._layer = cache, 0
        self._place = cache.lengths
        self._rows = torch.arange(len(self._place), device=self._place.device)
        cache.lengths = cache.lengths + 1
        self._longest = int(cache.lengths.max())
        columns = torch.arange(self._longest, device=self._place.device)
        self._seen = (columns < cache.lengths[:, None])[:, None, None]

    def attend(self, q: Tensor, k: Tensor, v: Tensor, dropout: Dropout | None) -> tuple[Tensor, None]:
        """q, k, v (B, nheads, head_dim) -> context of that shape."""
        keys, values = self._cache.keys[self._layer], self._cache.values[self._layer]
        keys[self._rows, :, self._place] = k.to(keys.dtype)
        values[self._rows, :, self._place] = v.to(values.dtype)
        self._layer += 1
        # The packed kernels cannot attend with one query per sequence to many keys; torch can.
        context = F.scaled_dot_product_attention(
            q[:, :, None], keys[:, :, : self._longest], values[:, :, : self._longest], attn_mask=self._seen
        )
        return context[:, :, 0], None
