"""Layer normalisation (Ba et al. 2016) of a dropped-out branch plus its residual: the post-LN step of BERT."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .dropout import dropout as apply_dropout


def _compute_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def layer_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    *,
    x_bias: Tensor | None = None,
    residual: Tensor | None = None,
    dropout=None,
    rows: Tensor | None = None,
) -> Tensor:
    """LN(residual + dropout(x + x_bias)), all in float32 at least; x, residual (..., H); weight, bias, x_bias (H,).

    ``rows`` (R,) int64 are the numbers of x's rows in the random stream, by default 0, 1, 2, ...
    """
    dtype = _compute_dtype(x.dtype)
    with torch.autocast(x.device.type, enabled=False):
        y = x.to(dtype)
        if x_bias is not None:
            y = y + x_bias.to(dtype)
        y = apply_dropout(y, dropout, rows)
        if residual is not None:
            y = residual.to(dtype) + y
        # The weight's shape: torch.onnx's older exporter, which traces, takes a constant alone.
        y = F.layer_norm(y, weight.shape, weight.to(dtype), bias.to(dtype), eps)
    return y.to(x.dtype)
