"""The gradient of a table of which a batch reads few rows: where it may differ from zero.

32 sentences of CoLA read some 180 of BERT's 30,522 word vectors. For them a gradient of the whole table was filled with
zeros, its norm was taken, and the optimiser read it and moved all moments (docs/LOG.md says what that cost). Now
`_in_place.add_rows` creates it in memory that the system provides as it is written, and a note says which chunks have
rows: the optimisers' CPU kernels do not read the others. torch counts writes to a tensor; after one that is not noted
here (a user's, autograd's), the whole gradient is read. It does not count what collectives of several processes write,
so no gradient is noted in a process of several.
"""

from __future__ import annotations

import contextlib
import mmap
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from .. import _native

# Below this size a table is in the processor's caches, and nothing is gained.
_LEAST_BYTES = 1 << 22
# With more tokens than one for so many rows of the table, most chunks have some.
_ROWS_A_TOKEN = 8


@dataclass
class _Note:
    """Which chunks were written, (chunks,) uint8 of 0 and 1, when the gradient had this version and memory."""

    chunks: Tensor
    state: tuple[int, int]


_notes = WeakTensorKeyDictionary()


def _state(gradient: Tensor) -> tuple[int, int]:
    return gradient._version, gradient.data_ptr()


def untouched_zeros(like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """As `torch.zeros_like` of a contiguous CPU tensor, but a page of it takes memory only when it is written."""
    dtype = like.dtype if dtype is None else dtype
    if not hasattr(mmap, "MAP_ANONYMOUS"):  # Windows
        return torch.zeros_like(like, dtype=dtype)
    pages = mmap.mmap(-1, like.numel() * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(AttributeError, OSError):  # a system without huge pages
        pages.madvise(mmap.MADV_NOHUGEPAGE)  # in which a few rows would write almost everything
    return torch.frombuffer(pages, dtype=dtype).view(like.shape)


def zeros_for(parameter: Tensor, ids: Tensor) -> Tensor:
    """A gradient of zeros for a parameter (V, C) of which the rows ``ids`` will be written; noted if they are few."""
    is_large = parameter.numel() * parameter.element_size() >= _LEAST_BYTES
    plain = parameter.device.type == "cpu" and parameter.is_contiguous() and _native.why_missing() is None
    if not (plain and is_large and len(ids) * _ROWS_A_TOKEN <= len(parameter) and _is_alone()):
        return torch.zeros_like(parameter)
    gradient = untouched_zeros(parameter)
    chunks = -(-gradient.numel() // _native.extension().OPTIMIZER_CHUNK)
    _notes[gradient] = _Note(torch.zeros(chunks, dtype=torch.uint8), _state(gradient))
    return gradient


def _is_alone() -> bool:
    """Whether this process has no group of torch.distributed with others, whose all_reduce could write gradients."""
    group = torch.distributed
    return not (group.is_available() and group.is_initialized() and group.get_world_size() > 1)


def written_chunks(gradient: Tensor) -> Tensor | None:
    """(chunks,) uint8: 0 for each of the optimisers' chunks in which a gradient is zero; None if nothing is known."""
    note = _notes.get(gradient)
    return None if note is None or note.state != _state(gradient) else note.chunks


@torch.no_grad()
def add_rows(gradient: Tensor, ids: Tensor, rows: Tensor) -> None:
    """gradient[ids[t]] += rows[t], token by token in order; keeps the note, if there is one."""
    chunks = written_chunks(gradient)
    gradient.index_add_(0, ids, rows.to(gradient.dtype))
    if chunks is not None:
        columns, chunk = gradient.shape[1], _native.extension().OPTIMIZER_CHUNK
        first, last = ids * columns // chunk, (ids * columns + columns - 1) // chunk
        for shift in range(-(-columns // chunk) + 1):  # a row of more columns lies in more than two
            chunks[torch.minimum(first + shift, last)] = 1
        _notes[gradient].state = _state(gradient)
