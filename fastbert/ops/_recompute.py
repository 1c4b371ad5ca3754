"""Activation checkpointing: layers that are recomputed in the backward pass in the same way as the first time.

By then the caller may have left the `backend` or `batch_invariant` block, and another backend saves other tensors,
which torch's checkpointing refuses. The backward pass may also run in another thread, where the settings do not hold.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import torch
import torch.utils.checkpoint

from .. import fp8
from . import _dispatch, _invariant, _invariant_mode


class _AsNow:
    """A context in which the settings hold that held when it was created. It is entered once for each backward pass,
    several times if the graph is kept."""

    def __init__(self) -> None:
        self._backend, self._invariant, self._policy = _dispatch.current_backend(), _invariant.active(), fp8.current()
        self._entered: list[ExitStack] = []

    def __enter__(self) -> None:
        with ExitStack() as stack:
            stack.enter_context(_dispatch.backend(self._backend))
            stack.enter_context(fp8.use(self._policy))
            if self._invariant:
                stack.enter_context(_invariant_mode.batch_invariant())
            self._entered.append(stack.pop_all())

    def __exit__(self, *error) -> None:
        self._entered.pop().__exit__(*error)


def recomputation() -> tuple[AbstractContextManager, AbstractContextManager]:
    """The contexts of a forward pass and of its recomputation: ``context_fn`` of torch's checkpointing."""
    return nullcontext(), _AsNow()


def checkpoint(function: Callable[..., Any], *inputs: Any) -> Any:
    """Calls a function whose activations are not kept, but recomputed for backward under the settings of this pass.

    Args:
        function: such as a layer.
        inputs: its arguments.

    Returns:
        what the function returns.

    Ref:
        Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost".
    """
    # In a compiled graph the settings are constants already, and torch refuses contexts other than its dispatch modes.
    options = {} if torch.compiler.is_compiling() else {"context_fn": recomputation}
    return torch.utils.checkpoint.checkpoint(function, *inputs, use_reentrant=False, **options)
