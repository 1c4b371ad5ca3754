"""Second derivatives: kernels compute gradients, plain torch differentiates them.

A gradient that a kernel computes is a function of the incoming gradient and of the tensors saved for it. If autograd
records the backward pass (``create_graph=True``), the kernel's result becomes the output of a node that knows the
function: by its derivative, or as what the gradient of the reference is in plain torch. Nothing of it is computed
before a second backward pass comes through that node, whose results can be differentiated again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ..errors import BackendError

_Tensors: TypeAlias = Sequence[Tensor | None]


class _Again(torch.autograd.Function):
    """Returns the first ``count`` tensors, as functions of the others that ``derive`` differentiates."""

    @staticmethod
    def forward(ctx, derive: Callable[..., _Tensors], count: int, *tensors: Tensor | None):
        ctx.derive, ctx.count = derive, count
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors[count:])
        return tensors[:count]

    @staticmethod
    def backward(ctx, *upstream: Tensor | None):
        others, wants = ctx.saved_tensors, ctx.needs_input_grad[2 + ctx.count :]
        device = next(x.device.type for x in others if x is not None)
        with torch.autocast(device, enabled=False):
            found = ctx.derive(others, upstream, wants)
        return (None,) * (2 + ctx.count) + tuple(g if want else None for g, want in zip(found, wants, strict=True))


def _derived(compute: Callable[..., _Tensors], others: _Tensors, upstream: _Tensors, wants: Sequence[bool]) -> _Tensors:
    """The gradients of ``compute(*others)`` by autograd."""
    graph = torch.is_grad_enabled()
    given = [_given(x, want, graph) for x, want in zip(others, wants, strict=True)]
    with torch.enable_grad():
        values = compute(*given)
    pairs = [
        (y, g.to(y.dtype))
        for y, g in zip(values, upstream, strict=True)
        if g is not None and y is not None and y.requires_grad
    ]
    if not pairs:
        return (None,) * len(given)
    inputs = [x for x, want in zip(given, wants, strict=True) if want]
    outputs, grads = zip(*pairs, strict=True)
    found = iter(torch.autograd.grad(outputs, inputs, grads, create_graph=graph, allow_unused=True))
    return [next(found) if want else None for want in wants]


def _given(x: Tensor | None, wanted: bool, graph: bool) -> Tensor | None:
    """x for a computation of its own, in which hooks on x do not run and of which autograd sees no more than x.

    Args:
        wanted: the gradient for x is wanted.
        graph: it will be differentiated itself, as a function of x.
    """
    if x is None:
        return None
    return x.view_as(x) if wanted and graph else x.detach().requires_grad_(wanted)


def differentiable_by(second: Callable[..., _Tensors]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorates the ``backward`` of an autograd function, whose result can then be differentiated.

    It is called as ``backward(ctx, saved, *grads)``, with ``saved`` for ctx.saved_tensors, which may be read only once,
    and returns a tuple.

    Args:
        second: called with ctx, saved, grads (a tuple), the gradients of what ``backward`` returned, some of them None,
            and whether each of grads and saved wants a gradient; returns these, by operators that autograd knows.
    """

    def decorated(backward: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(backward)
        def run(ctx: Any, *grads: Tensor | None):
            saved = ctx.saved_tensors
            if not torch.is_grad_enabled():  # no graph is built, so a second derivative cannot be asked for
                return backward(ctx, saved, *grads)
            with torch.no_grad():
                found = backward(ctx, saved, *grads)

            def derive(others: _Tensors, upstream: _Tensors, wants: Sequence[bool]) -> _Tensors:
                return second(ctx, others[len(grads) :], others[: len(grads)], upstream, wants)

            return _Again.apply(derive, len(found), *found, *grads, *saved)

        return run

    return decorated


def differentiable(again: Callable[..., _Tensors]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorates a ``backward`` that is called in the same way, and whose derivative autograd is to find.

    Args:
        again: is called in the same way, and returns the same tuple of gradients as functions of ``saved`` and
            ``grads`` that autograd knows; None for one that is not needed. All that the gradients depend on must be
            among ``saved``, as inputs or differentiable outputs of the function.
    """

    def second(ctx: Any, saved: _Tensors, grads: _Tensors, upstream: _Tensors, wants: Sequence[bool]) -> _Tensors:
        def compute(*others: Tensor | None) -> _Tensors:
            return again(ctx, others[len(grads) :], *others[: len(grads)])

        return _derived(compute, (*grads, *saved), upstream, wants)

    return differentiable_by(second)


def without_graph(message: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorates a ``backward`` that is called in the same way; with ``create_graph=True`` it raises BackendError.

    What is saved for it are results of the pass, of which autograd does not know that they depend on the inputs: it
    would take a second derivative with respect to these for zero.
    """

    def decorated(backward: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(backward)
        def run(ctx: Any, *grads: Tensor | None):
            if torch.is_grad_enabled():
                raise BackendError(message)
            return backward(ctx, ctx.saved_tensors, *grads)

        return run

    return decorated
