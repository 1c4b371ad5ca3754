"""Layers that are computed again in the backward pass, as they were computed the first time.

By then the caller has left the `backend` or `batch_invariant` block, and other ops keep other tensors: torch refuses
what does not keep the same. It may also be another thread, which has none of these choices.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, nullcontext

from .. import fp8
from . import _dispatch, _invariant, _invariant_mode


class _AsNow:
    """A block in which holds what held when it was made; entered in each backward pass over a graph that is kept."""

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
    """Blocks for a forward pass and for its repetition: ``context_fn`` of torch's checkpointing."""
    return nullcontext(), _AsNow()
