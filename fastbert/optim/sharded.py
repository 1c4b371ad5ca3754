"""LAMB for parameters that are flat shards: many tensors are laid end to end, and each process owns a range of them.

ZeRO (Rajbhandari et al. 2020) partitions optimiser state in this way, with which plain LAMB would be wrong: the trust
of a tensor is |p| / |u| over the whole tensor, but a shard has the end of one tensor, some whole ones, and the
beginning of another. So each process sums p^2 and u^2 over its piece of each tensor, and one all-reduce of these 2 x
n_tensors numbers gives every process all norms. Everything else in LAMB, and all of AdamW, works element by element.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..ops import _dispatch
from .base import Batch, scaled_gradients, write_back
from .lamb import Lamb, directions, trust_ratios
from .rates import divides_by_norm, has_trust


@dataclass(frozen=True)
class ShardLayout:
    """The positions of tensors in a flat shard.

    Args:
        tensors: the number of all tensors that are partitioned over the processes.
        parts: (length, number of the tensor or None) of each part of the shard, in order; None is padding.
    """

    tensors: int
    parts: tuple[tuple[int, int | None], ...]

    @classmethod
    def of_range(cls, sizes: Sequence[int], begin: int, end: int, offsets: Sequence[int] | None = None) -> ShardLayout:
        """The layout of the elements [begin, end) of a buffer of tensors.

        Args:
            sizes: the tensors' sizes.
            offsets: where each tensor begins, ascending; None if they are laid end to end. Elements between and after
                tensors are padding.
        """
        offsets = [sum(sizes[:number]) for number in range(len(sizes))] if offsets is None else offsets
        parts, done = [], begin
        for number, (start, size) in enumerate(zip(offsets, sizes, strict=True)):
            first, last = max(begin, start), min(end, start + size)
            if first < last:
                parts += [(first - done, None), (last - first, number)]
                done = last
        parts.append((end - done, None))
        return cls(len(sizes), tuple(part for part in parts if part[0]))

    @classmethod
    def of_pieces(cls, owned: Sequence[int], room: Sequence[int]) -> ShardLayout:
        """The layout of a piece of every tensor (``owned`` elements), each padded to ``room`` elements."""
        parts = []
        for number, (size, space) in enumerate(zip(owned, room, strict=True)):
            parts += [(length, what) for length, what in ((size, number), (space - size, None)) if length]
        return cls(len(owned), tuple(parts))

    @property
    def size(self) -> int:
        """The number of elements of the shard, including padding."""
        return sum(length for length, _ in self.parts)

    def pieces(self, flat: Tensor) -> list[Tensor]:
        """The parts of ``flat`` (size,) that belong to tensors, as views."""
        views = flat.split([length for length, _ in self.parts]) if self.parts else ()
        return [view for view, (_, number) in zip(views, self.parts, strict=True) if number is not None]

    def numbers(self) -> list[int]:
        """The number of each piece's tensor."""
        return [number for _, number in self.parts if number is not None]


class ShardedLamb(Lamb):
    """`Lamb` with parameters that may be flat shards (those in `layouts`); the others are updated as by `Lamb`.

    Attributes:
        layouts: the layout of each parameter that is a shard. All processes must make the same steps with the same
            number of shards, which may be empty, since each shard takes part in all-reduces.
        grad_norm: returns the norm of all gradients of all processes, for the variants that divide by it; None computes
            it here, which needs all gradients in each step.

    Args:
        reduce: sums a (n,) float64 tensor over the processes, in place.
        params, settings: as in `Lamb`.
    """

    def __init__(self, params: Iterable, reduce: Callable[[Tensor], None], **settings) -> None:
        self.reduce = reduce
        self.layouts: dict[Tensor, ShardLayout] = {}
        self.grad_norm: Callable[[], float] | None = None
        super().__init__(params, **settings)

    @classmethod
    def of(cls, lamb: Lamb, reduce: Callable[[Tensor], None]) -> ShardedLamb:
        """A `ShardedLamb` with the groups and settings of a `Lamb` that has not made a step yet."""
        return cls(lamb.param_groups, reduce, **lamb.defaults)

    def _divisor(self, grad_scale: float) -> Tensor | None:
        first = self.param_groups[0]
        if not self.layouts:
            return super()._divisor(grad_scale)
        if not divides_by_norm(first):
            return None
        norm = self.grad_norm() if self.grad_norm is not None else float(self.summed_norm())
        return torch.tensor(norm * grad_scale / first["max_grad_norm"], dtype=torch.float64).clamp(min=1.0)

    def summed_norm(self) -> Tensor:
        """The norm of all gradients over all processes, a () float64 tensor; padding must be 0."""
        gradients = [p.grad for group in self.param_groups for p in group["params"]]
        total = torch.stack([g.detach().to(torch.float64).square().sum() for g in gradients]).sum().view(1)
        self.reduce(total)
        return total.sqrt().squeeze(0)

    def _collect(self) -> list[Batch]:
        # DeepSpeed gives a step one group's shards at a time; zeros for the others would stay in memory.
        for p in (p for group in self.param_groups for p in group["params"]):
            if p.grad is None and p in self.layouts:  # not used on this process, but perhaps on others
                p.grad = torch.zeros_like(p)
        return super()._collect()

    def _update(self, batches: list[Batch], grad_scale: float) -> None:
        divisor = self._divisor(grad_scale)
        scale = grad_scale if divisor is None else grad_scale / float(divisor)
        whole = [batch for batch in batches if batch.params[0] not in self.layouts]
        if whole:
            _dispatch.call("lamb", whole, scale)
        for batch in batches:
            if batch.params[0] in self.layouts:
                self._update_shards(batch, scale)

    def _update_shards(self, batch: Batch, scale: float) -> None:
        updates = directions(batch, scaled_gradients(batch, scale))
        for p, target, update in zip(batch.params, batch.targets, updates, strict=True):
            layout = self.layouts[p]
            ours, theirs = layout.pieces(target), layout.pieces(update)
            if has_trust(batch.group):
                trust = self._trusts(batch.group, layout, target, update)
                for piece, number in zip(theirs, layout.numbers(), strict=True):
                    piece.mul_(trust[number])
            if ours:
                torch._foreach_add_(ours, theirs, alpha=-batch.group["lr"])
        write_back(batch)

    def _trusts(self, group: dict, layout: ShardLayout, target: Tensor, update: Tensor) -> Tensor:
        """The trust of each tensor: (n_tensors,) in the update's dtype, the same on every process."""
        squares = torch.zeros(2, layout.tensors, dtype=torch.float64, device=update.device)
        pieces = [*layout.pieces(target), *layout.pieces(update)]
        if pieces:
            own = torch.stack(torch._foreach_norm(pieces, 2, dtype=torch.float64)).square().view(2, -1)
            squares.index_add_(1, torch.tensor(layout.numbers(), device=update.device), own)
        self.reduce(squares.view(-1))
        weights, changes = squares.sqrt()
        return trust_ratios(group, weights, changes).to(update.dtype)
