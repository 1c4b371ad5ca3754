"""A BiLSTM over packed sequences: what may stand between an encoder and a task's head (Devlin et al. 2019, table 5)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .bilm import Order


def over_sequences(lstm: nn.LSTM, x: Tensor, cu_seqlens: Tensor) -> Tensor:
    """Runs an LSTM over each of the sequences laid end to end: (T, H) -> (T, directions * units), in its own dtype.

    On a CPU the steps are ours: torch's cut each out of the packed tokens, the gradient of every cut is as large as
    them all, and the recurrent weight's is added up step by step.
    """
    if not x.shape[0]:
        return x.new_zeros(0, lstm.hidden_size * (1 + lstm.bidirectional))
    dtype = lstm.weight_ih_l0.dtype
    with torch.autocast(x.device.type, enabled=False):
        if x.device.type == "cpu" and lstm.bias and not lstm.dropout and not lstm.proj_size:
            return _layers(lstm, x.to(dtype), cu_seqlens)
        lengths = [length for length in cu_seqlens.diff().tolist() if length]  # an LSTM has no empty sequence
        sequences = nn.utils.rnn.pack_sequence(x.to(dtype).split(lengths), enforce_sorted=False)
        return torch.cat(nn.utils.rnn.unpack_sequence(lstm(sequences)[0]))


def _layers(lstm: nn.LSTM, x: Tensor, cu_seqlens: Tensor) -> Tensor:
    orders = [Order(cu_seqlens, backwards) for backwards in (False, True)[: 1 + lstm.bidirectional]]
    for layer in range(lstm.num_layers):
        found = []
        for order, suffix in zip(orders, (f"l{layer}", f"l{layer}_reverse"), strict=False):
            of_x, of_h, *biases = (getattr(lstm, f"{name}_{suffix}") for name in _WEIGHTS)
            gates = nn.functional.linear(order.pack(x).data, of_x, sum(biases))
            found.append(order.unpack(_Steps.apply(gates, of_h, order.batch_sizes.tolist())))
        x = torch.cat(found, 1)
    return x


_WEIGHTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


class _Steps(torch.autograd.Function):
    """The recurrence of `torch.nn.LSTM`, one direction of one layer, in the order of the steps.

    Kept for backward are 6 U numbers a token. The gradient of the recurrent weight is one product over all steps.
    """

    @staticmethod
    def forward(ctx, gates: Tensor, weight: Tensor, sizes: list[int]) -> Tensor:
        """(T, 4U) what the inputs give to the gates i, f, g, o, and (4U, U) -> (T, U) states.

        Args:
            sizes: sequences that have each step; they become no more.
        """
        gates, units = gates.clone(), weight.shape[1]
        states, cells = (gates.new_empty(len(gates), units) for _ in range(2))
        h = c = gates.new_zeros(sizes[0], units)
        # Views of the results, so that a step writes into its place.
        for at, h_out, c_out in zip(*(x.split(sizes) for x in (gates, states, cells)), strict=True):
            n = len(at)
            at += nn.functional.linear(h[:n], weight)  # and no addmm: `ops.batch_invariant` knows this one
            i, f, g, o = at.chunk(4, 1)
            at[:, : 2 * units].sigmoid_()
            g.tanh_()
            o.sigmoid_()
            torch.mul(f, c[:n], out=c_out).addcmul_(i, g)
            torch.tanh(c_out, out=h_out).mul_(o)
            h, c = h_out, c_out
        ctx.save_for_backward(gates, states, cells, weight)
        ctx.sizes = sizes
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        gates, states, cells, weight = ctx.saved_tensors
        sizes, units = ctx.sizes, weight.shape[1]
        grad_gates = torch.empty_like(gates)
        # What each step began with: the first rows of the step before it, which had at least as many sequences.
        before_h, before_c = (_begins(x, sizes) for x in (states, cells))
        parts = [x.split(sizes) for x in (grad, grad_gates, gates, cells, before_c)]
        dh = dc = grad.new_zeros(0, units)
        for grad_h, out, at, cell, before in reversed(list(zip(*parts, strict=True))):
            i, f, g, o = at.chunk(4, 1)
            total = grad_h.clone()
            total[: len(dh)] += dh
            tanh = torch.tanh(cell)
            grad_c = total * o * (1 - tanh * tanh)
            grad_c[: len(dc)] += dc
            di, df, dg, do = out.chunk(4, 1)
            torch.mul(grad_c * g, i * (1 - i), out=di)
            torch.mul(grad_c * before, f * (1 - f), out=df)
            torch.mul(grad_c * i, 1 - g * g, out=dg)
            torch.mul(total * tanh, o * (1 - o), out=do)
            dh, dc = out @ weight, grad_c * f
        return grad_gates, grad_gates.t() @ before_h, None


def _begins(x: Tensor, sizes: list[int]) -> Tensor:
    """(T, U) states after each step -> (T, U) those before it, zeros before the first."""
    steps = x.split(sizes)
    first = x.new_zeros(sizes[0], x.shape[1])
    return torch.cat([first, *(before[:size] for before, size in zip(steps, sizes[1:], strict=False))])


class HeadBiLSTM(nn.Module):
    """One bidirectional layer on the encoder's hidden states, begun at random.

    Args:
        width: of the hidden states.
        units: each way.
    """

    def __init__(self, width: int, units: int) -> None:
        super().__init__()
        self.units = units
        self.lstm = nn.LSTM(width, units, bidirectional=True)

    def forward(self, hidden: Tensor, tokens) -> Tensor:
        """(T, H) of `models.door.Tokens` -> (T, 2 * units); a masked token of a rectangle gets zeros."""
        if tokens.keep is None:
            return over_sequences(self.lstm, hidden, tokens.cu_seqlens)
        keep = tokens.keep.flatten()
        lengths = tokens.keep.sum(1)
        out = over_sequences(self.lstm, hidden[keep], torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]))
        return out.new_zeros(len(keep), out.shape[-1]).index_copy(0, keep.nonzero().flatten(), out)

    def ends(self, out: Tensor, tokens) -> Tensor:
        """(B, 2 * units): what each direction has when it has read the whole sequence; zeros for an empty one."""
        first, last = tokens.first_rows(), tokens.last_rows()
        if not out.shape[0]:
            return out.new_zeros(len(first), out.shape[-1])
        both = torch.cat([out.index_select(0, last)[:, : self.units], out.index_select(0, first)[:, self.units :]], 1)
        return tokens.without_empty(both)
