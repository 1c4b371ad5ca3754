"""Attention of a rectangular batch on the CPU: torch's fused attention if only the output is needed, without dropout.

Otherwise the reference, with its dropout masks drawn by our kernel.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from .. import _native, reference
from ..rng import Dropout
from . import _cpu, _dispatch
from ._cpu_dropout import keep_mask


def _accepts(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **_) -> str | None:
    return _cpu.why_not(q, k, v)


@_dispatch.register("attention_padded", "cpu", available=_native.why_missing, accepts=_accepts)
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
    if not probabilities and dropout is None:
        # Since torch 2.5, rows without keys give 0 here too, and a mask that requires a gradient gets it.
        return F.scaled_dot_product_attention(q, k, v, mask, scale=softmax_scale), None
    options = {"softmax_scale": softmax_scale, "dropout": dropout, "keep_mask": keep_mask}
    out, probs = reference.attention_padded(q, k, v, mask, **options)
    return out, probs if probabilities else None
