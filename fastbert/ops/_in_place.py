"""Gradients that an op adds to a parameter's ``.grad`` itself, if the training engine allows it.

BERT's word embedding table is also the weight of its masked-LM head. Autograd computes its gradient twice, dense from
the head, and as a table of zeros with a few rows from the embedding, and adds the two: with 4 layers of 256 units and a
vocabulary of 30,522 that is 10 to 15 % of a step (docs/cpu-performance.md). Here the rows are added to the head's
gradient directly.

Autograd does not see such a gradient, so `torch.autograd.grad`, hooks and engines that wait for it (DDP, ZeRO) would
miss it. Therefore only an engine switches this on, around a forward pass that is followed by `Tensor.backward()`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import torch
from torch import Tensor

from . import _few_rows

_state = threading.local()


@contextlib.contextmanager
def gradients_in_place(allowed: bool = True) -> Iterator[None]:
    """Inside the block, in this thread, ops may leave a parameter out of the graph and add to its ``.grad`` themselves.

    This saves adding two gradients of a large table. It is for training loops that call ``backward`` and read
    ``.grad``; `torch.autograd.grad` would miss that part. A parameter with hooks stays in the graph.

    Between ``backward`` and the optimiser's step a ``.grad`` must be written in ways that torch counts as writes (not
    through ``.data``, numpy or a library's own collectives): what is known to be zero is not read again. With a process
    group of torch.distributed nothing is taken to be zero.

    Args:
        allowed: False forbids it inside a block that allows it.
    """
    before = getattr(_state, "allowed", False)
    _state.allowed = allowed
    try:
        yield
    finally:
        _state.allowed = before


def is_allowed(parameter: Tensor) -> bool:
    """Whether an op may add to this tensor's ``.grad``: it is allowed, and the tensor is a leaf without hooks."""
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
    """parameter.grad[ids[t]] += rows[t], token by token in order.

    Args:
        parameter: (V, H) float32 or bfloat16.
        ids: (T,) int64.
        rows: (T, H) float32.
        skipped: the id whose rows are left out; negative for none.
    """
    if skipped >= 0 and (kept := ids != skipped).logical_not().any():
        ids, rows = ids[kept], rows[kept]
    if parameter.grad is None:
        parameter.grad = _few_rows.zeros_for(parameter, ids)
    _few_rows.add_rows(parameter.grad, ids, rows)
