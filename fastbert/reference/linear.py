"""y = x W^T + b."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x (..., K), weight (N, K), bias (N,) or None -> (..., N)."""
    return F.linear(x, weight, bias)
