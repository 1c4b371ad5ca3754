"""LSTM layers with a projection over packed tokens, in both directions (Peters et al. 2018, section 3.1)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .lstm import Order, lstm_steps


class ProjectedLSTM(nn.LSTM):
    """One layer, in one direction, with a projection (Sak et al. 2014): weights, names and results of `torch.nn.LSTM`.

    On a CUDA device torch's own computes it, unless something is clipped, for which that has no place. Elsewhere the
    steps are ours (`lstm_steps`).

    Args:
        input_size, cells, size: of the input, of the state c, and of the projected state h that comes out.
        cell_clip, projection_clip: c and h are held to +- these at every step, which also bounds them in the next;
            None leaves them alone.
    """

    def __init__(
        self,
        input_size: int,
        cells: int,
        size: int,
        cell_clip: float | None = None,
        projection_clip: float | None = None,
    ) -> None:
        super().__init__(input_size, cells, proj_size=size)
        self.cell_clip, self.projection_clip = cell_clip, projection_clip

    def forward(self, x: Tensor, order: Order) -> Tensor:
        """(T, input_size) -> (T, size), the state after each token."""
        if not len(x):
            return x.new_zeros(0, self.proj_size)
        packed = order.pack(x)
        if x.device.type == "cuda" and self.cell_clip is None and self.projection_clip is None:
            return order.unpack(super().forward(packed)[0].data)
        # Products of a step are too small to gain by a lower precision, and its states would lose by it.
        with torch.autocast(x.device.type, enabled=False):
            gates = nn.functional.linear(
                packed.data.to(self.weight_hr_l0.dtype), self.weight_ih_l0, self.bias_ih_l0 + self.bias_hh_l0
            )
            clips = self.cell_clip, self.projection_clip
            return order.unpack(lstm_steps(gates, self.weight_hh_l0, order, self.weight_hr_l0, *clips))
