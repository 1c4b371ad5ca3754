"""Gradients that have none of their own, as kernels' have not: a second derivative is refused, not taken for zero."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from ..errors import BackendError

OF_CASTS = "gradients in 8 bits have none of their own: expected a loss of first derivatives"


def by_reference(name: str) -> str:
    """What a second derivative through an op is told."""
    return (
        f"{name} has no gradient of its own: for second derivatives compute the forward pass under "
        'fastbert.backend("reference")'
    )


class _Refusal(torch.autograd.Function):
    @staticmethod
    def forward(ctx, said: str, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        ctx.said = said
        return gradients

    @staticmethod
    def backward(ctx, *_grads):
        raise BackendError(ctx.said)


def once_differentiable(said: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """For the backward of an autograd function: a derivative of what it returns is a BackendError that says so.

    Not torch's decorator of that name, which looks at the gradient from above alone. Where that is a constant, as a
    sum's is, it refuses nothing, and what depends on the weights that were saved would be missing without a word.
    """

    def decorated(backward: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(backward)
        def run(ctx: Any, *grads: Tensor | None):
            with torch.no_grad():
                found = backward(ctx, *grads)
            if not torch.is_grad_enabled():  # nobody can ask
                return found
            several = found if isinstance(found, tuple) else (found,)
            refusing = _Refusal.apply(said, *(g if g is None else g.detach().requires_grad_() for g in several))
            return refusing if isinstance(found, tuple) else refusing[0]

        return run

    return decorated
