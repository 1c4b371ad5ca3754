"""Refusal of second derivatives: the gradients that our kernels compute cannot be differentiated themselves.

Without it autograd would take such a derivative for zero.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from ..errors import BackendError

REFUSED_FOR_FP8 = "gradients in 8 bits cannot be differentiated: expected a loss without second derivatives"


def refused_for(name: str) -> str:
    """The message for a second derivative through the op ``name``, which the reference does have."""
    return (
        f"{name} cannot be differentiated: for second derivatives compute the forward pass under "
        'fastbert.backend("reference")'
    )


class _Refusal(torch.autograd.Function):
    """Returns the first ``count`` tensors, as functions of all of them that cannot be differentiated."""

    @staticmethod
    def forward(ctx, message: str, count: int, *tensors: Tensor | None) -> tuple[Tensor | None, ...]:
        ctx.message = message
        return tensors[:count]

    @staticmethod
    def backward(ctx, *_grads):
        raise BackendError(ctx.message)


def once_differentiable(message: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorates the ``backward`` of an autograd function: differentiating what it returns raises BackendError(message).

    It is called as ``backward(ctx, saved, *grads)``, with ``saved`` for ctx.saved_tensors, which may be read only once.

    Unlike torch's decorator of the same name, it does not depend on whether the incoming gradient requires one. That
    gradient may be a constant (as under a sum), and torch's decorator then refuses nothing, although the result depends
    on the saved tensors: a second derivative with respect to them would be silently missing. So the result is a
    function of them too; `torch.autograd.functional.hessian` takes for zero what does not depend on its input.
    """

    def decorated(backward: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(backward)
        def run(ctx: Any, *grads: Tensor | None):
            saved = ctx.saved_tensors
            with torch.no_grad():
                found = backward(ctx, saved, *grads)
            if not torch.is_grad_enabled():  # no graph is built, so a second derivative cannot be asked for
                return found
            several = found if isinstance(found, tuple) else (found,)
            several = tuple(g if g is None else g.detach().requires_grad_() for g in several)
            refusing = _Refusal.apply(message, len(several), *several, *grads, *saved)
            return refusing if isinstance(found, tuple) else refusing[0]

        return run

    return decorated
