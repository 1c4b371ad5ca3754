"""The gradient of the CPU's whole-encoder call: nothing is saved for it, and it is recomputed if a backward pass comes.

Most passes in evaluation mode are recorded by autograd only because no torch.no_grad() is around them, and no backward
pass follows. They use the fast whole-encoder call all the same. If a backward pass does come, the layers are computed
again op by op, to differentiate these ops. Since that costs an additional forward pass, a stack that has seen one is
recorded op by op from then on (`PackedEncoder.is_differentiated`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .. import fp8, reference
from ..errors import BackendError
from . import _invariant, _recompute, _watchers
from ._double_backward import differentiable
from ._needed_gradients import needed_gradients
from .attention import attention
from .encoder import LayerParameters, PackedEncoder, each_once, layers_of
from .gelu import gelu
from .layer_norm import layer_norm
from .linear import linear

_STEPS = reference.Steps(linear, attention, gelu, layer_norm)
# Whether hooks on saved tensors are active, as in activation checkpointing, which expects the same tensors to be saved
# when it recomputes. A private function of torch's: in a release without it, recorded passes are computed op by op.
_saving_hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", lambda _ignored: True)


def why_not(dtype: torch.dtype) -> str | None:
    """None if a recorded pass in this dtype can use the whole-encoder call, else the reason why not."""
    if torch.compiler.is_compiling():
        return "the whole-encoder kernel has no gradient in a compiler's graph"
    # In float32, batch-invariant products have the same bits in both ways.
    same_bits_matter = _invariant.active() and dtype != torch.float32
    if same_bits_matter or torch.are_deterministic_algorithms_enabled():
        return "a recorded pass must have the same bits before and after the first backward pass"
    if fp8.is_in_use() or _watchers.is_traced(own_modes=_invariant.active()) or _saving_hooks(True):
        return "something observes the ops, or the tensors that they save for the backward pass"
    return None


class Call(NamedTuple):
    """What all layers share, besides cu_seqlens."""

    max_seqlen: int
    nheads: int
    eps: float
    approximate: str
    packed: PackedEncoder
    has_bias: bool


def _recomputed(ctx, cu_seqlens: Tensor, given: Sequence[Tensor]) -> Tensor:
    """The last of the layers' states, recorded as a function of x and the layers' tensors, which are ``given``."""
    with torch.inference_mode(False), torch.enable_grad(), ctx.as_now, ctx.autocast():
        x, *tensors = given
        bias = tensors[-1] if ctx.call.has_bias else None
        return _op_by_op(x, layers_of([tensors[number] for number in ctx.order]), cu_seqlens, bias, ctx.call)


def _as_then(ctx, given: Sequence[Tensor]) -> list[Tensor]:
    """The saved tensors in the memory that they had: after ``parameter.data = other`` they are in another, of which
    autograd, which counts no version for it, says nothing."""
    return [t if t.data_ptr() == then.data_ptr() else then for t, then in zip(given, ctx.then, strict=True)]


def _gradient_again(ctx, saved: Sequence[Tensor], dy: Tensor) -> tuple[Tensor | None, ...]:
    cu_seqlens, *given = saved
    if any(t is not then for t, then in zip(given, _as_then(ctx, given), strict=True)):
        raise BackendError("a second derivative needs the weights of the forward pass; .data was given another tensor")
    y = _recomputed(ctx, cu_seqlens, given)
    found = iter(torch.autograd.grad(y, [t for t in given if t.requires_grad], dy, create_graph=True))
    return None, None, None, None, *(next(found) if t.requires_grad else None for t in given)


class _Deferred(torch.autograd.Function):
    """Attaches to y, which has been computed already, the gradient of some layers applied to x.

    Each tensor is passed once, so that one that several layers share gets a single gradient, summed on the way;
    ``order`` gives for each tensor of the layers its number among those passed. A bias of attention is the last one.
    """

    @staticmethod
    def forward(
        ctx, y: Tensor, call: Call, order: list[int], cu_seqlens: Tensor, x: Tensor, *tensors: Tensor
    ) -> Tensor:
        ctx.call, ctx.order, ctx.as_now, ctx.autocast = call, order, _recompute.recomputation()[1], _autocast()
        ctx.save_for_backward(cu_seqlens, x, *tensors)
        ctx.then = [x.detach(), *map(Tensor.detach, tensors)]
        # Neither y itself nor a view of it: autograd would forbid the caller to write to the result in place.
        return y.new_empty(0).set_(y.untyped_storage(), y.storage_offset(), y.shape, y.stride())

    @staticmethod
    @differentiable(_gradient_again)
    def backward(ctx, saved: tuple[Tensor, ...], dy: Tensor):
        ctx.call.packed.is_differentiated = True
        cu_seqlens, *saved = saved
        # Detached from the inputs: their hooks must not run here, and their .grad must not be filled.
        of_state, _, _, *others = ctx.needs_input_grad  # the second and the third input are not tensors
        _, _, *wants = needed_gradients(ctx, [of_state, *others])
        given = [t.detach().requires_grad_(want) for t, want in zip(_as_then(ctx, saved), wants, strict=True)]
        # The backward pass may run inside inference_mode(), which records nothing and whose tensors cannot be saved.
        dy = dy.clone() if dy.is_inference() else dy
        y = _recomputed(ctx, cu_seqlens, given)
        gradients = iter(torch.autograd.grad(y, [t for t in given if t.requires_grad], dy))
        return None, None, None, None, *(next(gradients) if t.requires_grad else None for t in given)


def _autocast() -> Callable[[], torch.autocast]:
    """The current autocast setting as a context that can be entered later."""
    enabled, dtype = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
    return lambda: torch.autocast("cpu", dtype, enabled, cache_enabled=False)


def _op_by_op(
    x: Tensor, layers: Sequence[LayerParameters], cu_seqlens: Tensor, bias: Tensor | None, call: Call
) -> Tensor:
    options = {"nheads": call.nheads, "eps": call.eps, "approximate": call.approximate, "bias": bias}
    return reference.encoder(x, layers, cu_seqlens, call.max_seqlen, **options, steps=_STEPS)[-1]


def deferred(
    states: Sequence[Tensor],
    x: Tensor,
    tensors: list[Tensor],
    cu_seqlens: Tensor,
    bias: Tensor | None,
    call: Call,
    between: Callable[[Tensor], Tensor] | None,
) -> list[Tensor]:
    """Attaches deferred gradients to states that have been computed.

    Args:
        states: (T, H) after the last layer alone, or after each layer, whose gradient then goes to the state before it.
        x: (T, H), the input of the first layer.
        tensors: those of all layers, one after the other.
        cu_seqlens: (B+1,) int32.
        bias: that of attention, or None.
        between: as in `fused_encoder`.
    """
    each, last = len(tensors) // len(states), [] if bias is None else [bias]
    recorded = []
    for number, state in enumerate(states):
        x = x.to(state.dtype)  # under autocast, what ``between`` returns may be wider
        own = tensors[number * each : (number + 1) * each]
        first, order = each_once(map(id, own))
        x = _Deferred.apply(state, call, order, cu_seqlens, x, *(own[place] for place in first), *last)
        x = x if between is None else between(x)
        recorded.append(x)
    return recorded
