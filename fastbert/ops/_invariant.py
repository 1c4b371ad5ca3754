"""The interface of batch-invariant mode (`_invariant_mode`) for ops: whether it is on, and how to compute if it is.

Our own products sum each element in an order that depends on the inner dimension alone, our attention is computed
sequence by sequence and everything else row by row, so they need no change. torch's products choose their order by the
number of rows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import BackendError


class _State(threading.local):
    def __init__(self) -> None:
        # Not class attributes: torch.compile guards on an instance's attributes, and failed when one appeared later.
        self.depth, self.trusted = 0, False


state = _State()


def active() -> bool:
    """Whether this thread is inside a `batch_invariant` block."""
    return state.depth > 0


@contextmanager
def trusted() -> Iterator[None]:
    """Inside the block, calls of torch are not intercepted: they compute a single row or sequence."""
    before, state.trusted = state.trusted, True
    try:
        yield
    finally:
        state.trusted = before


def refuse(what: str) -> None:
    """Raises BackendError if batch-invariant mode is on.

    Args:
        what: a clause for the message that says what would depend on the batch.
    """
    if active():
        raise BackendError(f"batch_invariant cannot hold: {what}")


def check(x: Tensor) -> None:
    """Raises BackendError if the mode is on and x is on a device, or in a compiled model, that cannot guarantee it."""
    if not active():
        return
    if x.device.type != "cpu":
        refuse(f"it is kept on the CPU, got a tensor on {x.device}")
    if torch.compiler.is_compiling():
        refuse("a compiled model chooses its products by the size of the batch; expected one that is not compiled")


def by_rows(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Applies a function to each row of x (..., C) separately; each row is copied, so that all are aligned alike."""
    rows = x.reshape(-1, x.shape[-1]) if x.dim() > 1 else x[None]
    with trusted():
        if not rows.numel():
            return function(x)
        out = torch.cat([function(row.clone()) for row in rows.split(1)])
    return out.reshape(*x.shape[:-1], out.shape[-1])


def by_sequences(attention: Callable, q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, **options) -> Tensor:
    """Attention of packed q, k, v (T, nheads, head_dim), computed one sequence at a time."""
    out, ends = [], cu_seqlens.tolist()
    with trusted():
        for start, end in pairwise(ends):
            alone = (x[start:end].clone(memory_format=torch.contiguous_format) for x in (q, k, v))
            bounds = torch.tensor([0, end - start], dtype=torch.int32, device="cpu")
            out.append(attention(*alone, bounds, end - start, **options))
    return torch.cat([*out, q.new_zeros(len(q) - ends[-1], *q.shape[1:])])


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`torch.nn.functional.linear` row by row."""
    return by_rows(lambda row: F.linear(row, weight, bias), x)
