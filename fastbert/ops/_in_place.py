"""Gradients that an op adds to a parameter's ``.grad`` itself, where the engine that runs backward allows it.

BERT's word table is also its masked-LM head's weight. Through autograd its gradient comes twice, dense from the head
and as a table of zeros with a few rows from the embedding, which are then added up: with 4 layers of 256 units and a
vocabulary of 30,522 that is 10 to 15 % of a step (docs/cpu-performance.md). Here the rows are added to the head's.

Autograd does not see such a gradient: `torch.autograd.grad`, hooks and engines that wait for it (DDP, ZeRO) would miss
it. So it is for an engine to switch on, around the forward pass of a `Tensor.backward()`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import torch
from torch import Tensor

_state = threading.local()


@contextlib.contextmanager
def gradients_in_place(allowed: bool = True) -> Iterator[None]:
    """Within, in this thread, ops may leave a parameter out of the graph and add to its ``.grad`` in their backward.

    It saves the sum of two gradients of a large table, and is for training loops that call ``backward`` and read
    ``.grad``: `torch.autograd.grad` would not see that part. A parameter with hooks stays in the graph.

    Args:
        allowed: False forbids it within a block that allows it.
    """
    before = getattr(_state, "allowed", False)
    _state.allowed = allowed
    try:
        yield
    finally:
        _state.allowed = before


def is_allowed(parameter: Tensor) -> bool:
    """Whether an op may add to this tensor's ``.grad``: a parameter that nobody listens to."""
    return (
        getattr(_state, "allowed", False)
        and not torch.compiler.is_compiling()
        and torch.is_grad_enabled()
        and parameter.requires_grad
        and parameter.is_leaf
        and not parameter._backward_hooks
        and not parameter._post_accumulate_grad_hooks
    )


def add_rows(parameter: Tensor, ids: Tensor, rows: Tensor, skipped: int) -> None:
    """parameter.grad[ids[t]] += rows[t], one token after the other; ``ids`` that are ``skipped`` are left out.

    Args:
        parameter: (V, H) float32 or bfloat16.
        ids: (T,) int64.
        rows: (T, H) float32.
    """
    if skipped >= 0 and (kept := ids != skipped).logical_not().any():
        ids, rows = ids[kept], rows[kept]
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    with torch.no_grad():
        parameter.grad.index_add_(0, ids, rows.to(parameter.grad.dtype))
