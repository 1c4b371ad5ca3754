"""The steps of an LSTM over packed tokens: with clipping, which torch's LSTM lacks, and faster than it on a CPU."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear
from torch.nn.utils.rnn import PackedSequence

from ..errors import InputError
from ..ops import without_graph
from ..transforms import is_exported


class Order:
    """The order in which a recurrent layer reads the tokens of a batch: the first of every sequence, then the second of
    every sequence, and so on.

    Args:
        cu_seqlens: (B+1,) int32 of the tokens; empty sequences are allowed.
        backwards: whether each sequence is read from its end.

    Raises:
        InputError: this pass is exported.
    """

    def __init__(self, cu_seqlens: Tensor, backwards: bool) -> None:
        if is_exported():
            raise InputError(
                "a graph that is exported or traced would keep its example's lengths, which an LSTM's steps follow, "
                "for every later batch: expected a model without a BiLSTM"
            )
        device = cu_seqlens.device
        starts, lengths = cu_seqlens[:-1].cpu().long(), cu_seqlens.diff().cpu().long()
        longest = int(lengths.max()) if lengths.numel() else 0
        by_length = lengths.argsort(descending=True, stable=True)
        steps = torch.arange(longest, device=lengths.device)  # not on the default device, which may be another
        # (steps, sequences), whether a sequence has a step: read row by row, torch's order of a packed sequence.
        there = steps[:, None] < lengths[by_length][None]
        offsets = lengths[by_length] - 1 - steps[:, None] if backwards else steps[:, None].expand(there.shape)
        tokens = (starts[by_length] + offsets)[there]
        self.batch_sizes = there.sum(1)  # (steps,) int64 on the CPU, as torch wants it
        self.tokens = tokens.to(device)  # (T,) index in the order of the steps -> token
        places = torch.empty_like(tokens)
        places[tokens] = torch.arange(len(tokens), device=places.device)
        self.places = places.to(device)  # (T,) the inverse: token -> index in the order of the steps

    def pack(self, x: Tensor) -> PackedSequence:
        """(T, F) in the order of the tokens -> what `torch.nn.LSTM` takes."""
        return PackedSequence(x.index_select(0, self.tokens), self.batch_sizes)

    def unpack(self, x: Tensor) -> Tensor:
        """(T, F) in the order of the steps -> in the order of the tokens."""
        return x.index_select(0, self.places)


def lstm_steps(
    gates: Tensor,
    weight: Tensor,
    order: Order,
    projection: Tensor | None = None,
    cell_clip: float | None = None,
    projection_clip: float | None = None,
) -> Tensor:
    """The recurrence of `torch.nn.LSTM`, one direction of one layer.

    On a CPU, torch slices every step out of the packed tokens, where the gradient of each slice is as large as all
    tokens, and adds up the recurrent weight's gradient step by step. Here 6 U numbers per token are kept for backward,
    and a weight's gradient is one product over all steps.

    Args:
        gates: (T, 4U), in the order of the steps: the inputs' part of the gates i, f, g, o, with biases.
        weight: (4U, P), the recurrent weight; P is U without a projection.
        projection: (P, U), from the cells' output to the state (Sak et al. 2014), or None.
        cell_clip, projection_clip: the cell state and the projected state are clipped to +- these at every step; None
            does not clip.

    Returns:
        (T, P) states, in the order of the steps.
    """
    return _Steps.apply(gates, weight, projection, order.batch_sizes.tolist(), cell_clip, projection_clip)


class _Steps(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gates: Tensor, weight: Tensor, projection: Tensor | None, sizes: list[int], *clips: float | None):
        """`sizes`: how many sequences have each step; descending."""
        gates, units = gates.clone(), weight.shape[0] // 4
        states, cells = gates.new_empty(len(gates), weight.shape[1]), gates.new_empty(len(gates), units)
        h, c = gates.new_zeros(sizes[0], weight.shape[1]), gates.new_zeros(sizes[0], units)
        # Views of the results, so that a step writes into its place.
        for at, h_out, c_out in zip(*(x.split(sizes) for x in (gates, states, cells)), strict=True):
            n = len(at)
            at += linear(h[:n], weight)  # not addmm, which `ops.batch_invariant` refuses
            i, f, g, o = at.chunk(4, 1)
            at[:, : 2 * units].sigmoid_()
            g.tanh_()
            o.sigmoid_()
            _clip_(torch.mul(f, c[:n], out=c_out).addcmul_(i, g), clips[0])
            if projection is None:
                torch.tanh(c_out, out=h_out).mul_(o)
            else:
                _clip_(h_out.copy_(linear(torch.tanh(c_out).mul_(o), projection)), clips[1])
            h, c = h_out, c_out
        ctx.save_for_backward(gates, states, cells, weight, projection)
        ctx.sizes, ctx.clips = sizes, clips
        return states

    @staticmethod
    @without_graph("an LSTM's gradient cannot be differentiated: expected a loss without second derivatives")
    def backward(ctx, saved: tuple[Tensor, ...], grad: Tensor):
        gates, states, cells, weight, projection = saved
        sizes, units = ctx.sizes, cells.shape[1]
        grad_gates, grad_states = torch.empty_like(gates), torch.empty_like(states)
        # The states before each step: the first rows of the previous step, which has at least as many sequences.
        before_h, before_c = (_begins(x, sizes) for x in (states, cells))
        parts = [x.split(sizes) for x in (grad, grad_states, grad_gates, gates, states, cells, before_c)]
        dh = dc = grad.new_zeros(0, 1)
        for given, total, out, at, state, cell, before in reversed(list(zip(*parts, strict=True))):
            i, f, g, o = at.chunk(4, 1)
            total.copy_(given)
            total[: len(dh)] += dh
            _stop_(total, state, ctx.clips[1])
            out_of_cell = total if projection is None else total @ projection
            tanh = torch.tanh(cell)
            grad_c = out_of_cell * o * (1 - tanh * tanh)
            grad_c[: len(dc)] += dc
            _stop_(grad_c, cell, ctx.clips[0])
            di, df, dg, do = out.chunk(4, 1)
            torch.mul(grad_c * g, i * (1 - i), out=di)
            torch.mul(grad_c * before, f * (1 - f), out=df)
            torch.mul(grad_c * i, 1 - g * g, out=dg)
            torch.mul(out_of_cell * tanh, o * (1 - o), out=do)
            dh, dc = out @ weight, grad_c * f
        if projection is None:
            grad_projection = None
        else:
            grad_projection = grad_states.t() @ torch.tanh(cells).mul_(gates[:, 3 * units :])
        return grad_gates, grad_gates.t() @ before_h, grad_projection, None, None, None


def _begins(x: Tensor, sizes: list[int]) -> Tensor:
    """x (T, U), the states after each step -> (T, U), the states before it, zeros before the first."""
    steps = x.split(sizes)
    first = x.new_zeros(sizes[0], x.shape[1])
    return torch.cat([first, *(before[:size] for before, size in zip(steps, sizes[1:], strict=False))])


def _clip_(x: Tensor, limit: float | None) -> None:
    if limit is not None:
        x.clamp_(-limit, limit)


def _stop_(grad: Tensor, clipped: Tensor, limit: float | None) -> None:
    """Sets the gradient to zero, in place, at values that were clipped."""
    if limit is not None:
        grad.masked_fill_(clipped.abs() >= limit, 0.0)
