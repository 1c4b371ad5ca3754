"""Gaussian error linear unit (Hendrycks & Gimpel 2016), x * Phi(x), or its tanh approximation; bias added first."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def gelu(x: Tensor, bias: Tensor | None = None, approximate: str = "none") -> Tensor:
    """GELU(x + bias): x (..., F), bias (F,) or None; ``approximate`` is "none" (erf) or "tanh"."""
    if bias is not None:
        x = x + bias.to(x.dtype)
    return F.gelu(x, approximate=approximate)
