"""LSTM layers with a projection over packed tokens, in both directions (Peters et al. 2018, section 3.1)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .lstm import Order, lstm_steps


class ProjectedLSTM(nn.LSTM):
    """One layer, in one direction, with a projection (Sak et al. 2014): weights, names and results of `torch.nn.LSTM`.

    On a CUDA device torch's LSTM computes it, unless values are clipped, which torch cannot do. Elsewhere the steps are
    ours (`lstm_steps`).

    Args:
        input_size, cells, size: the sizes of the input, of the cell state c, and of the output, the projected state h.
        cell_clip, projection_clip: c and h are clipped to +- these at every step, before the next step reads them; None
            does not clip.
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
        """x (T, input_size) -> (T, size), the projected state after each token."""
        if not len(x):
            return x.new_zeros(0, self.proj_size)
        packed = order.pack(x)
        if x.device.type == "cuda" and self.cell_clip is None and self.projection_clip is None:
            return order.unpack(super().forward(packed)[0].data)
        # A step's products are too small to gain speed by a lower precision, and its states would lose accuracy.
        with torch.autocast(x.device.type, enabled=False):
            gates = nn.functional.linear(
                packed.data.to(self.weight_hr_l0.dtype), self.weight_ih_l0, self.bias_ih_l0 + self.bias_hh_l0
            )
            clips = self.cell_clip, self.projection_clip
            return order.unpack(lstm_steps(gates, self.weight_hh_l0, order, self.weight_hr_l0, *clips))
