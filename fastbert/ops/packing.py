"""From a padded batch to packed tokens and back.

The size of a `fastbert.packing.Packing` depends on the mask's values, so the host must wait for the device to read them
(`read_mask`). The shapes of a `RoomPacking` depend only on a capacity given by the caller, so that a captured step can
pack.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import InputError
from ..packing import Packing
from . import _dispatch


def read_mask(mask: Tensor, *, first_column: bool) -> Packing | None:
    """The packing of the tokens that a mask keeps.

    Args:
        mask: (B, S), any dtype, non-zero = keep.
        first_column: whether the first token of every sequence that keeps any is needed.

    Returns:
        the packing; None if a first token is needed and masked.

    Raises:
        InputError: the mask has another shape.
    """
    if mask.dim() != 2:
        raise InputError(f"attention_mask must be (B, S) to be packed, got shape {tuple(mask.shape)}")
    return _dispatch.call("read_mask", mask, first_column)


@_dispatch.register("read_mask", "reference")
def read_mask_by_torch(mask: Tensor, first_column: bool) -> Packing | None:
    """`read_mask` by torch, on any device, for which it waits."""
    if first_column and mask.shape[1]:
        keep = mask != 0
        if bool((keep.any(1) & ~keep[:, 0]).any()):
            return None
    return Packing.from_mask(mask)


@dataclass(frozen=True)
class RoomPacking:
    """The positions of the kept tokens of a (B, S) batch in a packed batch with a capacity of C tokens.

    Args:
        indices: (C,) int64, the kept tokens' indices among the B*S, ascending; -1 after the last.
        position_ids: (C,) int64, the columns of the kept tokens; 0 after the last.
        slots: (B*S,) int32, each token's index in the packed batch, or -1.
        cu_seqlens: (B+1,) int32, at most C: tokens beyond the capacity are dropped.
        statistics: (2,) int32: how many tokens the mask keeps (above C if some were dropped); the longest sequence.
        shape: (B, S).
    """

    indices: Tensor
    position_ids: Tensor
    slots: Tensor
    cu_seqlens: Tensor
    statistics: Tensor
    shape: tuple[int, int]

    @classmethod
    def from_mask(cls, attention_mask: Tensor, capacity: int) -> RoomPacking:
        """Reads a mask.

        Args:
            attention_mask: (B, S) of any dtype, non-zero = keep.
            capacity: C, at least 1.

        Raises:
            InputError: the mask has another shape, or the capacity or the mask's size is out of range.
        """
        if attention_mask.dim() != 2:
            raise InputError(f"attention_mask must be (B, S) to be packed, got shape {tuple(attention_mask.shape)}")
        if not 0 < capacity < 1 << 31:
            raise InputError(f"capacity must be a number of tokens from 1 to 2^31 - 1, got {capacity}")
        if attention_mask.numel() >= 1 << 31:
            raise InputError(f"attention_mask must have fewer than 2^31 elements, got {attention_mask.numel()}")
        outputs = _dispatch.call("pack", attention_mask, capacity)
        return cls(*outputs, tuple(attention_mask.shape))

    def pack(self, x: Tensor) -> Tensor:
        """(B, S, ...) -> (C, ...), zeros after the last kept token."""
        if x.shape[:2] != self.shape:
            raise InputError(f"what is packed must begin with {self.shape}, got shape {tuple(x.shape)}")
        self._check_device("packed", x)
        return _dispatch.call("gather_rows", x.flatten(0, 1), self.indices, self.slots)

    def unpack(self, x: Tensor) -> Tensor:
        """(C, ...) -> (B, S, ...), zeros where nothing was kept."""
        if x.shape[:1] != self.indices.shape:
            raise InputError(f"what is unpacked must begin with {tuple(self.indices.shape)}, got {tuple(x.shape)}")
        self._check_device("unpacked", x)
        return _dispatch.call("gather_rows", x, self.slots, self.indices).unflatten(0, self.shape)

    def _check_device(self, done: str, x: Tensor) -> None:
        if x.device != self.indices.device:
            raise InputError(f"what is {done} must be on the device of the mask, {self.indices.device}, got {x.device}")


@_dispatch.register("pack", "reference")
def _pack(mask: Tensor, capacity: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """`RoomPacking` by torch's functions, which do not wait for the device either."""
    keep = (mask != 0).flatten()
    lengths = (mask != 0).sum(1)
    slots = torch.cumsum(keep, 0) - 1
    slots = torch.where(keep & (slots < capacity), slots, -1)
    tokens = torch.arange(keep.numel(), device=mask.device)
    # Tokens that are not packed are written to an additional last slot, which is then cut off.
    target = torch.where(slots < 0, capacity, slots)
    indices = torch.full((capacity + 1,), -1, dtype=torch.int64, device=mask.device).scatter_(0, target, tokens)
    columns = tokens % max(mask.shape[1], 1)
    positions = torch.zeros(capacity + 1, dtype=torch.int64, device=mask.device).scatter_(0, target, columns)
    bounds = torch.zeros(mask.shape[0] + 1, dtype=torch.int64, device=mask.device)
    bounds[1:] = torch.cumsum(lengths, 0)
    longest = lengths.max() if lengths.numel() else bounds[0]
    statistics = torch.stack([bounds[-1], longest]).to(torch.int32)
    return (
        indices[:capacity],
        positions[:capacity],
        slots.to(torch.int32),
        bounds.clamp(max=capacity).to(torch.int32),
        statistics,
    )


@_dispatch.register("gather_rows", "reference")
def _gather_rows(x: Tensor, places: Tensor, inverse: Tensor) -> Tensor:
    """out[r] = x[places[r]], zeros where places[r] < 0; ``inverse`` is the inverse mapping, for the gradient."""
    if x.shape[0] == 0:
        return x.new_zeros(places.shape[0], *x.shape[1:])
    rows = x.index_select(0, places.clamp(min=0))
    return torch.where((places >= 0).view(-1, *[1] * (x.dim() - 1)), rows, rows.new_zeros(()))
