"""A BiLSTM over packed sequences, for use between an encoder and a task's head (Devlin et al. 2019, table 5)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..packing import cu_seqlens_from_lengths
from .lstm import Order, lstm_steps


def over_sequences(lstm: nn.LSTM, x: Tensor, cu_seqlens: Tensor) -> Tensor:
    """Runs an LSTM over each sequence of a packed batch; on a CPU by steps of our own (`lstm_steps`).

    Args:
        x: (T, H).
        cu_seqlens: (B+1,) int32, the sequences' bounds.

    Returns:
        (T, directions * units) in the dtype of the LSTM.
    """
    if not x.shape[0]:
        return x.new_zeros(0, lstm.hidden_size * (1 + lstm.bidirectional))
    dtype = lstm.weight_ih_l0.dtype
    with torch.autocast(x.device.type, enabled=False):
        if x.device.type == "cpu" and lstm.bias and not lstm.dropout and not lstm.proj_size:
            return _layers(lstm, x.to(dtype), cu_seqlens)
        order = Order(cu_seqlens, backwards=False)
        return order.unpack(lstm(order.pack(x.to(dtype)))[0].data)


def _layers(lstm: nn.LSTM, x: Tensor, cu_seqlens: Tensor) -> Tensor:
    orders = [Order(cu_seqlens, backwards) for backwards in (False, True)[: 1 + lstm.bidirectional]]
    for layer in range(lstm.num_layers):
        found = []
        for order, suffix in zip(orders, (f"l{layer}", f"l{layer}_reverse"), strict=False):
            of_x, of_h, *biases = (getattr(lstm, f"{name}_{suffix}") for name in _WEIGHTS)
            gates = nn.functional.linear(order.pack(x).data, of_x, sum(biases))
            found.append(order.unpack(lstm_steps(gates, of_h, order)))
        x = torch.cat(found, 1)
    return x


_WEIGHTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


class HeadBiLSTM(nn.Module):
    """One bidirectional layer on the encoder's hidden states, randomly initialised.

    Args:
        width: the size of the hidden states.
        units: the size of the LSTM's state in each direction.
    """

    def __init__(self, width: int, units: int) -> None:
        super().__init__()
        self.units = units
        self.lstm = nn.LSTM(width, units, bidirectional=True)

    def forward(self, hidden: Tensor, tokens) -> Tensor:
        """hidden (T, H) -> (T, 2 * units), zeros at masked tokens of a padded batch. ``tokens``: a `Tokens` of
        `models.inputs`."""
        if tokens.shape.keep is None:
            return over_sequences(self.lstm, hidden, tokens.cu_seqlens)
        keep = tokens.shape.keep.flatten()
        out = over_sequences(self.lstm, hidden[keep], cu_seqlens_from_lengths(tokens.shape.keep.sum(1)))
        return out.new_zeros(len(keep), out.shape[-1]).index_copy(0, keep.nonzero().flatten(), out)

    def ends(self, out: Tensor, tokens) -> Tensor:
        """out (T, 2 * units) -> (B, 2 * units), each direction's state after the whole sequence; zeros for an empty
        one."""
        first, last = tokens.first_rows(), tokens.last_rows()
        if not out.shape[0]:
            return out.new_zeros(len(first), out.shape[-1])
        both = torch.cat([out.index_select(0, last)[:, : self.units], out.index_select(0, first)[:, self.units :]], 1)
        return tokens.without_empty(both)
