"""y = act(x W^T + b) + residual with int8 weights and activations quantised by token and group.

x ~ s_x (q_x - z),  q_x in 0..255          w ~ s_w q_w,  q_w in -127..127
x w = sum over groups of  s_x s_w sum (q_x - z) q_w     +     outlier columns, unquantised
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

_SMALLEST = torch.finfo(torch.float32).tiny


class Int8Weight(NamedTuple):
    """A quantised weight (N, K); group g holds the inputs group * g to group * (g + 1)."""

    q: Tensor  # (N, K) int8, 0 in outlier columns
    scale: Tensor  # (groups, N) float32
    group: int
    outliers: Tensor  # (O,) int32, ascending columns
    outlier_weights: Tensor  # (O, N) float32


def quantise_rows(x: Tensor, group: int) -> tuple[Tensor, Tensor, Tensor]:
    """Quantises each row's groups; in float32 by definition, since other arithmetic would round to other integers.

    Args:
        x: (T, K), outlier columns set to zero.

    Returns:
        q - z (T, K) int64; scale (T, groups) float32, NaN where a group is not finite; zero points (T, groups) int64.
    """
    values, scales, zeros = [], [], []
    for part in x.float().split(group, dim=1):
        low, high = part.amin(1).clamp(max=0), part.amax(1).clamp(min=0)
        share = torch.tensor(1 / 254, dtype=torch.float32)
        scale = high * share - low * share
        finite = part.isfinite().all(1)
        usable = finite & (scale >= _SMALLEST)
        inverse = torch.where(usable, 1 / scale, 0.0)
        steps = torch.where(usable[:, None], part * inverse[:, None], 0.0).round().long()
        values.append(steps)
        zeros.append(torch.where(usable, -low * inverse, 0.0).round().long())
        scale = torch.where(usable, scale, 0.0)
        scales.append(torch.where(finite, scale, torch.nan))
    return torch.cat(values, 1), torch.stack(scales, 1), torch.stack(zeros, 1)


def linear_int8(
    x: Tensor,
    weight: Int8Weight,
    bias: Tensor | None = None,
    activation: str | None = None,
    residual: Tensor | None = None,
    *,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """The definition of `fastbert.ops.linear_int8`.

    Args:
        x: (..., K) floating.
        bias: (N,) or None.
        activation: None, "none" for GELU by the error function, "tanh" for its approximation.
        residual: (..., N) or None.
        dtype: that of the arithmetic after the integer sums.

    Returns:
        (..., N) of ``dtype``.
    """
    shape = x.shape
    x = x.reshape(-1, shape[-1])
    columns = weight.outliers.long()
    rest = x.float().index_fill(1, columns, 0.0)
    steps, scales, _ = quantise_rows(rest, weight.group)
    out = x[:, columns].to(dtype) @ weight.outlier_weights.to(dtype)
    parts = zip(
        steps.split(weight.group, 1), weight.q.long().split(weight.group, 1), scales.T, weight.scale, strict=True
    )
    for a, b, row_scale, column_scale in parts:
        out = out + (a @ b.T).to(dtype) * (row_scale.to(dtype)[:, None] * column_scale.to(dtype))
    if bias is not None:
        out = out + bias.to(dtype)
    if activation is not None:
        out = F.gelu(out, approximate=activation)
    out = out.reshape(*shape[:-1], out.shape[-1])
    return out if residual is None else out + residual.to(dtype)
