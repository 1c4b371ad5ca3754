"""Attention of packed sequences by torch's batched products, with the kernels' dropout bits.

A batch of many different lengths would be many small products. So sequences of like length share one: they are gathered
into a rectangle of the longest of them, as a kernel's tiles would be, and the places past a sequence's end are masked.
Nothing outside this op sees those places.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .. import _native
from . import _cpu, _dispatch
from ._cpu_dropout import keep_mask

# A sequence joins a rectangle if it fills this share of its length: the products of a short one cost less than the
# calls that would compute it alone.
_LIKE = 0.6


def _buckets(lengths: list[int]) -> list[list[int]]:
    """Sequence numbers in groups of like length, the longest first; empty sequences are in none."""
    order = sorted((b for b, length in enumerate(lengths) if length), key=lambda b: -lengths[b])
    buckets: list[list[int]] = []
    for b in order:
        if not buckets or lengths[b] < _LIKE * lengths[buckets[-1][0]]:
            buckets.append([])
        buckets[-1].append(b)
    return buckets


def _rectangle(q, k, v, kept: Tensor | None, causal: bool, keep: Tensor | None, keep_scale: float) -> Tensor:
    """q (scaled), k, v (n, nheads, L, head_dim); kept (n, L) bool or None; keep (n, nheads, L, L) bool or None."""
    scores = torch.matmul(q, k.transpose(-1, -2))
    if kept is not None:
        scores = scores.masked_fill(~kept[:, None, None], float("-inf"))
    if causal:
        length = scores.shape[-1]
        scores = scores.masked_fill(torch.ones(length, length, dtype=torch.bool).triu(1), float("-inf"))
    probs = torch.softmax(scores, -1, dtype=torch.float32).to(q.dtype)
    if keep is not None:
        probs = probs * keep * keep_scale
    return torch.matmul(probs, v)


def _accepts(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, max_seqlen: int, **_) -> str | None:
    return _cpu.why_not(q, k, v)


@_dispatch.register("attention", "cpu", available=_native.why_missing, accepts=_accepts)
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    *,
    softmax_scale: float | None = None,
    dropout=None,
    causal: bool = False,
) -> Tensor:
    num_tokens, nheads, head_dim = q.shape
    q = q * (head_dim**-0.5 if softmax_scale is None else softmax_scale)
    starts, lengths = cu_seqlens[:-1].long(), cu_seqlens.diff().long()
    sizes = lengths.tolist()
    outputs, order = [], []
    for bucket in _buckets(sizes):
        longest, uniform = sizes[bucket[0]], sizes[bucket[0]] == sizes[bucket[-1]]
        members = torch.tensor(bucket)
        column = torch.arange(longest)
        kept = None if uniform else column < lengths[members, None]
        # A place past the end repeats the last token, so that it is a number; as a key it is masked, as a query left
        # out at the end.
        tokens = starts[members, None] + torch.minimum(column, lengths[members, None] - 1)
        whole = uniform and tokens.numel() == num_tokens and bucket == sorted(bucket)

        def heads_first(x: Tensor, tokens=tokens, whole=whole) -> Tensor:
            rows = x if whole else x.index_select(0, tokens.flatten())
            return rows.reshape(*tokens.shape, nheads, head_dim).transpose(1, 2)

        keep = None
        if dropout is not None:
            rows = tokens[:, None] * nheads + torch.arange(nheads)[:, None]
            keep = keep_mask(rows.flatten(), longest, dropout).reshape(len(bucket), nheads, longest, longest)
        out = _rectangle(
            heads_first(q), heads_first(k), heads_first(v), kept, causal, keep, dropout.scale if dropout else 1.0
        )
        out = out.transpose(1, 2)
        if whole:
            return out.reshape(num_tokens, nheads, head_dim)
        outputs.append(out.flatten(0, 1) if kept is None else out[kept])
        order.append(tokens.flatten() if kept is None else tokens[kept])
    if not outputs:
        return torch.zeros_like(q) + 0 * (q + k + v)
    return q.new_zeros(q.shape).index_copy(0, torch.cat(order), torch.cat(outputs))
