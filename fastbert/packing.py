"""Packed batches: sequences laid end to end, without padding.

Shape letters: B sequences, S columns of a padded batch, T tokens = sum of the sequence lengths, N labelled tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .errors import InputError
from .transforms import is_exported, is_transformed


def cu_seqlens_from_lengths(lengths: Tensor) -> Tensor:
    """Cumulative sequence lengths, (B,) -> (B+1,) int32, starting at 0."""
    out = torch.zeros(lengths.numel() + 1, dtype=torch.int32, device=lengths.device)
    torch.cumsum(lengths, 0, dtype=torch.int32, out=out[1:])
    return out


def checked_bounds(cu_seqlens: Tensor, num_tokens: int, max_seqlen: int | None) -> tuple[Tensor, int]:
    """Checks a caller's bounds of packed sequences.

    On a GPU the values are only read, and checked, if ``max_seqlen`` is not given. A GPU kernel ignores tokens beyond
    ``max_seqlen``; therefore one that is too small is refused on a CPU too, where it would do no harm.

    Args:
        cu_seqlens: (B+1,) int32 or int64.
        num_tokens: T.
        max_seqlen: the length of the longest sequence, or None to compute it.

    Returns:
        the bounds as int32, and the length of the longest sequence.

    Raises:
        InputError: the bounds are not (B+1,) integers or do not ascend from 0 to T, max_seqlen is too small, or this
            pass is exported.
    """
    if is_exported():
        raise InputError(
            "a graph that is exported or traced would keep where its example's packed sequences end for every later "
            "batch: expected a (B, S) batch, got cu_seqlens"
        )
    if not isinstance(cu_seqlens, Tensor) or cu_seqlens.dtype not in (torch.int32, torch.int64):
        got = cu_seqlens.dtype if isinstance(cu_seqlens, Tensor) else type(cu_seqlens).__name__
        raise InputError(f"cu_seqlens must be a tensor of int32 or int64, got {got}")
    if cu_seqlens.dim() != 1:
        raise InputError(f"cu_seqlens must be (B+1,), got shape {tuple(cu_seqlens.shape)}")
    lengths = cu_seqlens.diff()
    visible = (cu_seqlens.device.type == "cpu" or max_seqlen is None) and not torch.compiler.is_compiling()
    if visible:
        _check_ascent(cu_seqlens, lengths, num_tokens)
    if max_seqlen is None or visible:
        longest = int(lengths.max()) if lengths.numel() else 0
        if max_seqlen is None:
            max_seqlen = longest
        elif longest > max_seqlen:
            raise InputError(f"max_seqlen must be at least the longest sequence, {longest}, got {int(max_seqlen)}")
    return cu_seqlens.to(torch.int32), int(max_seqlen)


def check_end(cu_seqlens: Tensor, num_tokens: int) -> None:
    """Raises InputError for bounds on a CPU that end before the last token, which attention would leave out; the other
    faults of bounds are found where they are used."""
    known = cu_seqlens.device.type == "cpu" and not torch.compiler.is_compiling() and not is_transformed()
    if known and cu_seqlens.numel() and int(cu_seqlens[-1]) < num_tokens:
        raise InputError(f"cu_seqlens must ascend from 0 to the {num_tokens} tokens, got {cu_seqlens.tolist()!s:.100}")


def _check_ascent(cu_seqlens: Tensor, lengths: Tensor, num_tokens: int) -> None:
    ends = cu_seqlens[[0, -1]].tolist() if cu_seqlens.numel() else []
    if ends != [0, num_tokens] or bool((lengths < 0).any()):
        raise InputError(f"cu_seqlens must ascend from 0 to the {num_tokens} tokens, got {cu_seqlens.tolist()!s:.100}")


def _ids(row, name: str) -> Tensor:
    """A sequence of ids as (n,) int64. Raises InputError for anything but integers, since fractions would be lost."""
    try:
        ids = row if isinstance(row, Tensor) else torch.tensor(row)  # a copy: torch warns of what cannot be written
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"{name} must be sequences of ids, got {row!r:.50} among them") from None
    if ids.dim() != 1 or (ids.numel() and (ids.is_floating_point() or ids.is_complex())):
        raise InputError(f"{name} must be sequences of ids, got {row!r:.50} among them")
    return ids.to(torch.int64)


def _end_to_end(rows: Iterable, name: str) -> tuple[Tensor, list[int]]:
    """Sequences of ids as one (T,) int64, and their lengths."""
    rows = list(rows)
    if rows and all(type(row) is np.ndarray and row.dtype == np.int64 and row.ndim == 1 for row in rows):
        return torch.from_numpy(np.concatenate(rows)), list(map(len, rows))  # one by one they take ten times as long
    tensors = [_ids(row, name) for row in rows]
    flat = torch.cat(tensors) if tensors else torch.empty(0, dtype=torch.int64)
    return flat, [ids.numel() for ids in tensors]


@dataclass(frozen=True)
class PackedBatch:
    """A batch of sequences laid end to end, without padding.

    Args:
        input_ids, token_type_ids, position_ids: (T,) int64.
        cu_seqlens: (B+1,) int32; sequence b consists of the tokens from ``cu_seqlens[b]`` up to ``cu_seqlens[b+1]``.
        max_seqlen: the length of the longest sequence.
        mlm_positions: (N,) int64, ascending indices of the tokens to predict, or None.
        mlm_labels: (N,) int64, their vocabulary ids.
        nsp_labels: (B,) int64, 0 = the second segment follows the first, or None.
    """

    input_ids: Tensor
    token_type_ids: Tensor
    position_ids: Tensor
    cu_seqlens: Tensor
    max_seqlen: int
    mlm_positions: Tensor | None = None
    mlm_labels: Tensor | None = None
    nsp_labels: Tensor | None = None

    @property
    def num_tokens(self) -> int:
        """T, the number of tokens of all sequences."""
        return self.input_ids.numel()

    @property
    def num_sequences(self) -> int:
        """B, the number of sequences, empty ones included."""
        return self.cu_seqlens.numel() - 1

    @property
    def num_real_tokens(self) -> int:
        """The number of tokens without padding, which only a `data.budget.StaticBatch` has."""
        return self.num_tokens

    @property
    def num_real_sequences(self) -> int:
        """The number of sequences without padding."""
        return self.num_sequences

    @property
    def num_labels(self) -> int:
        """N, the number of tokens to predict."""
        return 0 if self.mlm_labels is None else self.mlm_labels.numel()

    @property
    def num_pairs(self) -> int:
        """The number of sequences with a next-sentence label."""
        return self.num_sequences if self.nsp_labels is not None else 0

    def to(self, device: torch.device | str | int, non_blocking: bool = False) -> PackedBatch:
        """The same batch on another device.

        Args:
            device: a `torch.device`, or the name or number of one.
            non_blocking: copies from pinned memory may still be in progress when this returns.
        """
        moved = {
            f.name: getattr(self, f.name).to(device, non_blocking=non_blocking)
            for f in fields(self)
            if isinstance(getattr(self, f.name), Tensor)
        }
        return replace(self, **moved)

    @classmethod
    def from_sequences(
        cls,
        input_ids: Sequence[Sequence[int] | np.ndarray[Any, Any] | Tensor],
        token_type_ids: Sequence[Sequence[int] | np.ndarray[Any, Any] | Tensor] | None = None,
        **labels: Tensor,
    ) -> PackedBatch:
        """Packs ragged sequences of ids; positions count from 0 in each.

        Args:
            input_ids: B sequences of ids (lists, arrays or 1-D tensors).
            token_type_ids: B sequences of the same lengths, or None for all zeros.
            labels: ``mlm_positions``, ``mlm_labels``, ``nsp_labels``.

        Raises:
            InputError: a sequence does not consist of whole numbers, token_type_ids have other lengths, or a label has
                another name.
        """
        if not isinstance(input_ids, Iterable):
            raise InputError(f"input_ids must be sequences of ids, got {type(input_ids).__name__}")
        unknown = labels.keys() - {"mlm_positions", "mlm_labels", "nsp_labels"}
        if unknown:
            raise InputError(f"labels must be mlm_positions, mlm_labels or nsp_labels, got {min(unknown)}")
        flat, lengths = _end_to_end(input_ids, "input_ids")
        bounds = np.cumsum([0, *lengths], dtype=np.int64)
        if token_type_ids is None:
            types = torch.zeros_like(flat)
        else:
            types, lengths_of_types = _end_to_end(token_type_ids, "token_type_ids")
            if lengths_of_types != lengths:
                raise InputError("token_type_ids must have the lengths of input_ids, row for row")
        positions = torch.from_numpy(np.arange(flat.numel(), dtype=np.int64) - np.repeat(bounds[:-1], lengths))
        cu_seqlens = torch.from_numpy(bounds.astype(np.int32))
        return cls(flat, types, positions, cu_seqlens, max(lengths, default=0), **labels)


@dataclass(frozen=True)
class Packing:
    """Where the kept tokens of a (B, S) batch are; packs a padded batch, and unpacks a packed one.

    Args:
        indices: (T,) int64 into the B*S flattened tokens, ascending.
        cu_seqlens: (B+1,) int32.
        min_seqlen, max_seqlen: the fewest and the most kept tokens of any row; 0 without rows.
        batch_size, seqlen: B and S.
    """

    indices: Tensor
    cu_seqlens: Tensor
    min_seqlen: int
    max_seqlen: int
    batch_size: int
    seqlen: int

    @classmethod
    def from_mask(cls, attention_mask: Tensor) -> Packing:
        """Reads a mask.

        Args:
            attention_mask: (B, S) of any dtype, non-zero = keep; holes and left padding are allowed.

        Raises:
            InputError: the mask has another shape.
        """
        if attention_mask.dim() != 2:
            raise InputError(f"attention_mask must be (B, S) to be packed, got shape {tuple(attention_mask.shape)}")
        keep = attention_mask != 0
        lengths = keep.sum(1)
        # One wait for the device. Not by tolist(), which older releases of torch refuse inside torch.func.
        fewest, most = map(int, torch.stack(lengths.aminmax()).cpu()) if lengths.numel() else (0, 0)
        return cls(
            indices=keep.flatten().nonzero().flatten(),
            cu_seqlens=cu_seqlens_from_lengths(lengths),
            min_seqlen=fewest,
            max_seqlen=most,
            batch_size=attention_mask.shape[0],
            seqlen=attention_mask.shape[1],
        )

    @classmethod
    def full(cls, batch_size: int, seqlen: int, device=None) -> Packing:
        """The packing of a batch without padding."""
        return cls(
            indices=torch.arange(batch_size * seqlen, device=device),
            cu_seqlens=torch.arange(batch_size + 1, dtype=torch.int32, device=device) * seqlen,
            # With ``if batch_size``, torch 2.6's compiler would take the size for a constant: a graph for each size.
            min_seqlen=seqlen if batch_size > 0 else 0,
            max_seqlen=seqlen,
            batch_size=batch_size,
            seqlen=seqlen,
        )

    @property
    def is_full(self) -> bool:
        """Whether every token of the (B, S) batch is kept."""
        return self.indices.numel() == self.batch_size * self.seqlen

    def keeps_distances(self) -> bool:
        """Whether packing keeps the distance between any two tokens of a row: no token between two kept ones is masked.
        The host waits for the device."""
        starts, ends = (bounds.to(torch.int64) for bounds in (self.cu_seqlens[:-1], self.cu_seqlens[1:]))
        filled = ends > starts
        starts, ends = starts[filled], ends[filled]
        return bool((self.indices[ends - 1] - self.indices[starts] == ends - 1 - starts).all())

    def pack(self, x: Tensor) -> Tensor:
        """(B, S, ...) -> (T, ...)."""
        flat = x.reshape(self.batch_size * self.seqlen, *x.shape[2:])
        return flat if self.is_full else flat.index_select(0, self.indices)

    def unpack(self, x: Tensor) -> Tensor:
        """(T, ...) -> (B, S, ...), zeros where the mask was zero."""
        if self.is_full:
            return x.reshape(self.batch_size, self.seqlen, *x.shape[1:])
        out = x.new_zeros(self.batch_size * self.seqlen, *x.shape[1:])
        return out.index_copy(0, self.indices, x).reshape(self.batch_size, self.seqlen, *x.shape[1:])


@dataclass(frozen=True)
class CallerShape:
    """The shape of a caller's tokens, and how to return results in it.

    Args:
        packing: that of a (B, S) batch; None if the caller's tokens were packed.
        keep: (B, S) bool, on the padded path: the tokens whose results are returned, others get zeros; None for all.
        row: whether packed tokens had the shape (1, T).
    """

    packing: Packing | None = None
    keep: Tensor | None = None
    row: bool = False

    def unpack(self, x: Tensor) -> Tensor:
        """(T, ...) -> the caller's shape: (B, S, ...) with zeros at masked tokens, (T, ...) or (1, T, ...)."""
        if self.packing is None:
            return x[None] if self.row else x
        x = self.packing.unpack(x)
        return x if self.keep is None else x.masked_fill(~self._kept(x), 0.0)

    def show(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """A hidden state x (T, H) in the caller's shape, and the tokens (T, H) for the next layer. The latter are
        computed from the former, so that gradients with respect to it are defined."""
        shown = self.unpack(x)
        return shown, self.tokens_of(shown, x) if x.requires_grad else x

    def tokens_of(self, shown: Tensor, x: Tensor) -> Tensor:
        """The tokens (T, H) of a state in the caller's shape, as `unpack` returned it for x or a hook changed it."""
        if self.packing is None:
            return shown[0] if self.row else shown
        tokens = self.packing.pack(shown)
        if self.keep is not None:  # the caller gets zeros at masked tokens, but the next layer reads their state in x
            tokens = torch.where(self._kept(shown).flatten(0, 1), tokens, x)
        return tokens

    def _kept(self, x: Tensor) -> Tensor:
        return self.keep.reshape(*self.keep.shape, *[1] * (x.dim() - 2))
