"""Scaled dot-product attention (Vaswani et al. 2017, eq. 1) of packed sequences.

O = dropout(softmax(scale * Q K^T + bias)) V     within each sequence and head
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

from .dropout import keep_mask as reference_keep_mask


def _softmax(scores: Tensor) -> Tensor:
    dtype = torch.float64 if scores.dtype == torch.float64 else torch.float32
    return torch.softmax(scores, -1, dtype=dtype).to(scores.dtype)


def relative_bias(bias: Tensor, length: int) -> Tensor:
    """A bias (nheads, 2R-1) of keys by their distance, as (nheads, L, L) of queries and keys; L <= R."""
    places = torch.arange(length, device=bias.device)
    return bias[:, bias.shape[1] // 2 + places - places[:, None]]


def _attend(q, k, v, scale: float, causal: bool, keep: Tensor | None, keep_scale: float, bias: Tensor | None) -> Tensor:
    """(n, nheads, L, head_dim) each; keep (n, nheads, L, L) bool or None; bias (nheads, 2R-1) or None."""
    scores = torch.matmul(q * scale, k.transpose(-1, -2))
    if bias is not None:
        scores = scores + relative_bias(bias, scores.shape[-1]).to(scores.dtype)
    if causal:
        length = scores.shape[-1]
        future = torch.ones(length, length, dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(future, float("-inf"))
    probs = _softmax(scores)
    if keep is not None:
        probs = probs * keep * keep_scale
    return torch.matmul(probs, v)


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
    bias: Tensor | None = None,
    keep_mask: Callable[[Tensor, int, object], Tensor] = reference_keep_mask,
) -> Tensor:
    """Attention of sequences laid end to end: q, k, v and result (T, nheads, head_dim), cu_seqlens (B+1,), bias
    (nheads, 2R-1) as `fastbert.ops.attention` takes it.

    Sequences of one length are computed together, so that nothing is padded. ``keep_mask`` makes the dropout mask of
    given rows (token * nheads + head) and columns (key index); a backend may pass a faster generator of the same bits.
    """
    num_tokens, nheads, head_dim = q.shape
    scale = head_dim**-0.5 if softmax_scale is None else softmax_scale
    # Not tolist(), which older releases of torch refuse within torch.func.
    bounds = [int(bound) for bound in cu_seqlens.cpu()]
    by_length: dict[int, list[int]] = {}
    for start, end in pairwise(bounds):
        if end > start:
            by_length.setdefault(end - start, []).append(start)

    outputs, order = [], []
    for length, starts in by_length.items():
        first = torch.tensor(starts, device=q.device)
        tokens = (first[:, None] + torch.arange(length, device=q.device)).flatten()
        whole = len(by_length) == 1 and tokens.numel() == num_tokens

        def heads_first(x: Tensor, tokens=tokens, length=length, whole=whole) -> Tensor:
            rows = x if whole else x.index_select(0, tokens)
            return rows.reshape(-1, length, nheads, head_dim).transpose(1, 2)

        keep = None
        if dropout is not None:
            rows = tokens.reshape(-1, 1, length) * nheads + torch.arange(nheads, device=q.device)[:, None]
            keep = keep_mask(rows.flatten(), length, dropout).reshape(-1, nheads, length, length)
        rows, keep_scale = map(heads_first, (q, k, v)), dropout.scale if dropout else 1.0
        out = _attend(*rows, scale, causal, keep, keep_scale, bias)
        outputs.append(out.transpose(1, 2).reshape(-1, nheads, head_dim))
        order.append(tokens)

    if not outputs:
        # Zeros whose gradients are zeros, whatever is in tokens of no sequence.
        inputs = q + k + v if bias is None else q + k + v + bias.sum().to(q.dtype)
        return torch.where(torch.zeros_like(q, dtype=torch.bool), inputs, torch.zeros_like(q))
    if len(outputs) == 1 and outputs[0].shape[0] == num_tokens:
        return outputs[0]
    tokens = torch.cat(order)
    return q.new_zeros(q.shape).index_copy(0, tokens, torch.cat(outputs))


def attention_padded(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    *,
    softmax_scale: float | None = None,
    dropout=None,
    keep_mask: Callable[[Tensor, int, object], Tensor] = reference_keep_mask,
) -> tuple[Tensor, Tensor]:
    """Attention of a rectangular batch under any additive mask; it is slow and keeps the probabilities.

    Args:
        q, k, v: (B, nheads, S, head_dim).
        mask: additive, broadcastable to (B, nheads, S, S), 0 = keep and a very negative number = drop; or None.
        keep_mask: as in `attention`.

    Returns:
        The output (B, nheads, S, head_dim) and the probabilities (B, nheads, S, S) before dropout.
        A row whose keys are all at -inf gets zeros.
    """
    batch_size, nheads, length, head_dim = q.shape
    scores = torch.matmul(q * (head_dim**-0.5 if softmax_scale is None else softmax_scale), k.transpose(-1, -2))
    if mask is None:
        probs = _softmax(scores)
    else:
        # The softmax of a row of -inf alone is NaN, and so is its gradient, even if the output is replaced by 0. Such
        # rows are looked for in the mask, which is usually smaller than the scores. The bound is halved, since adding a
        # score to it must not overflow float16.
        some = (mask != float("-inf")).any(-1, keepdim=True)
        scores = scores + mask.clamp(min=torch.finfo(mask.dtype).min / 2)
        probs = _softmax(scores) * some.to(scores.dtype)
    dropped = probs
    if dropout is not None:
        device = q.device
        tokens = torch.arange(batch_size * length, device=device).reshape(batch_size, 1, length)
        rows = tokens * nheads + torch.arange(nheads, device=device)[:, None]
        keep = keep_mask(rows.flatten(), length, dropout)
        dropped = probs * keep.reshape(probs.shape) * dropout.scale
    return torch.matmul(dropped, v), probs
