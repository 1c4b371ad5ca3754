"""LSTM layers with a projection over packed tokens, in both directions (Peters et al. 2018, section 3.1)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence


class Order:
    """The order in which a recurrent layer takes the tokens of a batch: every sequence's first, then every second one.

    Args:
        cu_seqlens: (B+1,) int32 of the tokens; empty sequences are allowed.
        backwards: whether each sequence is read from its end.
    """

    def __init__(self, cu_seqlens: Tensor, backwards: bool) -> None:
        device = cu_seqlens.device
        starts, lengths = cu_seqlens[:-1].cpu().long(), cu_seqlens.diff().cpu().long()
        longest = int(lengths.max()) if lengths.numel() else 0
        by_length = lengths.argsort(descending=True, stable=True)
        steps = torch.arange(longest)
        # (steps, sequences): torch's layout of a packed sequence, read row by row where a sequence has such a step.
        there = steps[:, None] < lengths[by_length][None]
        offsets = lengths[by_length] - 1 - steps[:, None] if backwards else steps[:, None].expand(there.shape)
        tokens = (starts[by_length] + offsets)[there]
        self.batch_sizes = there.sum(1)  # (steps,) int64 on the CPU, as torch wants it
        self.tokens = tokens.to(device)  # (T,) place -> token
        places = torch.empty_like(tokens)
        places[tokens] = torch.arange(len(tokens))
        self.places = places.to(device)  # (T,) token -> place

    def pack(self, x: Tensor) -> PackedSequence:
        """(T, F) in the order of the tokens -> what `torch.nn.LSTM` takes."""
        return PackedSequence(x.index_select(0, self.tokens), self.batch_sizes)

    def unpack(self, x: Tensor) -> Tensor:
        """(T, F) in the order of the steps -> in the order of the tokens."""
        return x.index_select(0, self.places)


class ProjectedLSTM(nn.LSTM):
    """One layer, in one direction, with a projection (Sak et al. 2014): weights, names and results of `torch.nn.LSTM`.

    On a CUDA device torch's own computes it, unless something is clipped, for which that has no place. Elsewhere the
    steps are ours: torch's cuts each out of the packed tokens, and the gradient of every cut is as large as them all.

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
            return order.unpack(self._steps(packed.data.to(self.weight_hr_l0.dtype), packed.batch_sizes))

    def _steps(self, x: Tensor, batch_sizes: Tensor) -> Tensor:
        """(T, input_size) in the order of the steps -> (T, size) in the same."""
        gates_of_x = nn.functional.linear(x, self.weight_ih_l0, self.bias_ih_l0 + self.bias_hh_l0)
        sizes = batch_sizes.tolist()
        h = x.new_zeros(sizes[0], self.proj_size)
        c = x.new_zeros(sizes[0], self.hidden_size)
        states = []
        for gates, size in zip(gates_of_x.split(sizes), sizes, strict=True):
            i, f, g, o = torch.addmm(gates, h[:size], self.weight_hh_l0.t()).chunk(4, 1)
            c = torch.sigmoid(f) * c[:size] + torch.sigmoid(i) * torch.tanh(g)
            c = _clip(c, self.cell_clip)
            h = _clip(nn.functional.linear(torch.sigmoid(o) * torch.tanh(c), self.weight_hr_l0), self.projection_clip)
            states.append(h)
        return torch.cat(states)


def _clip(x: Tensor, limit: float | None) -> Tensor:
    return x if limit is None else x.clamp(-limit, limit)
