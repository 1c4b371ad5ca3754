"""Optimiser steps that run entirely on the device, for training steps captured in a CUDA graph.

The learning rate, the loss scale and the step counts are in device memory. Whether the gradients are finite, how they
are clipped and whether the step is counted is decided on the device, and nothing waits for it.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from ..errors import InputError
from ..graph_capture import keep
from ..ops import _dispatch
from .base import Batch, MasterWeightOptimizer, clip_factor, write_back
from .lamb import trust_ratios
from .rates import divides_by_norm, has_trust, is_corrected, lr_scale


@dataclass(frozen=True)
class Outcome:
    """The outcome of a step, on the device.

    Args:
        norm: () float32, the norm of all gradients times their scale, before clipping.
        finite: () float32, 1 if the step was made and counted; 0 if nothing was changed.
    """

    norm: Tensor
    finite: Tensor


@dataclass
class Rows:
    """The parameters of an optimiser, in the order of the step counts.

    Args:
        params: every parameter that may get a gradient; those of the same dtype are adjacent.
        groups: the group of each parameter.
        counts: (params,) int32 on the device, the step counts.
        states: each parameter's entry of ``optimizer.state``.
        one: (1,) float32 on the device, the scale of gradients that need none.
        prepared: what backends keep between steps, by name.
    """

    params: list[Tensor]
    groups: list[dict]
    counts: Tensor
    states: list[dict]
    one: Tensor
    prepared: dict = field(default_factory=dict)

    @property
    def device(self) -> torch.device:
        """The parameters' device."""
        return self.counts.device

    @cached_property
    def by_address(self) -> dict[int, dict]:
        """The distinct groups, by their address (`id`)."""
        return {id(group): group for group in self.groups}

    @cached_property
    def have_masters(self) -> bool:
        """Whether a parameter has 16 bits."""
        return any(p.dtype.itemsize < 4 for p in self.params)

    def settle(self) -> None:
        """Copies the counts into the states; waits for the device."""
        for state, count in zip(self.states, self.counts.tolist(), strict=True):
            state["step"] = count


class Snapshot:
    """What a captured `device_step` is of: an optimiser's parameters, which of them learn, where they are in memory,
    and their states. A graph does not notice that some of it was replaced: layers were unfrozen, a checkpoint was
    loaded, the model was moved, `optimizer.step` has made a step.

    Args:
        optimizer: an `AdamW` or a `Lamb`, after a `device_step`.
    """

    def __init__(self, optimizer: MasterWeightOptimizer) -> None:
        self._objects, self._addresses = _parts(optimizer)

    def is_of(self, optimizer: MasterWeightOptimizer) -> bool:
        """Whether nothing was replaced since. For every step: it takes the host a third of what `prepare` does."""
        objects, addresses = _parts(optimizer)
        same = len(objects) == len(self._objects) and all(map(operator.is_, objects, self._objects))
        return same and addresses == self._addresses


def follow_writes(optimizer: MasterWeightOptimizer) -> None:
    """Copies into the master weights what was written to 16-bit parameters since the last step: a mask, weights that
    were loaded in place. A step does so itself; called before a replay of one, which does not."""
    if optimizer.rows is not None and optimizer.rows.have_masters:
        optimizer.ensure_states(optimizer.rows.params)


def _parts(optimizer: MasterWeightOptimizer) -> tuple[list, list[int]]:
    """What is the same object, and what is the same number, as long as a captured step holds."""
    params = [p for group in optimizer.param_groups for p in group["params"]]
    objects = [optimizer.rows, *params, *[p.requires_grad for p in params], *optimizer.state.values()]
    return objects, list(map(Tensor.data_ptr, params))


def is_capturing(device: torch.device) -> bool:
    """Whether a CUDA graph is being captured on the current stream of a device."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _keep(optimizer: MasterWeightOptimizer, rows: Rows, batches: list[Batch]) -> None:
    """Keeps what a captured step reads and writes, whatever replaces it in the optimiser: as long as the graph, or as
    long as the optimiser if it is not known whose the graph is. Gradients are in the graph's own memory."""
    tensors = [t for batch in batches for column in (batch.targets, batch.first, batch.second) for t in column]
    read = [rows, *tensors]
    if not keep(read):
        optimizer.kept_for_graphs.update((id(one), one) for one in read)


def prepare(optimizer: MasterWeightOptimizer) -> Rows:
    """Creates all states and moves the step counts to the device. Master weights follow what was written to 16-bit
    parameters since the last step.

    The result of an earlier call is kept, unless states were replaced since then (a checkpoint was loaded).

    Args:
        optimizer: an `AdamW` or a `Lamb`, for `device_step`.

    Returns:
        the parameters, their groups and states, and the counts, for `device_step`.

    Raises:
        InputError: the parameters are on several devices.
    """
    pairs = [(p, group) for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    if len({p.dtype for p, _ in pairs}) > 1:
        pairs.sort(key=lambda pair: str(pair[0].dtype))
    states = optimizer.ensure_states([p for p, _ in pairs])
    rows = optimizer.rows
    if rows is not None and len(rows.states) == len(states) and all(map(operator.is_, rows.states, states)):
        return rows
    # Parameters were added or removed, or states replaced: the counts go back into the states that they belong to.
    optimizer.settle()
    devices = {p.device for p, _ in pairs}
    if len(devices) != 1:
        raise InputError(f"a step on the device takes parameters of one device, got {sorted(map(str, devices))}")
    counts = torch.tensor([state["step"] for state in states], dtype=torch.int32).to(devices.pop())
    # Made here and not when it is needed: that may be in a capture, and a plain step after it would read it unwritten.
    one = torch.ones(1, device=counts.device)
    optimizer.rows = Rows([p for p, _ in pairs], [group for _, group in pairs], counts, states, one)
    return optimizer.rows


@torch.no_grad()
def device_step(
    optimizer: MasterWeightOptimizer, lr: Tensor, *, max_norm: float | None = None, grad_scale: Tensor | None = None
) -> Outcome:
    """Computes the norm, clips the gradients and updates every parameter that has one; if the norm is not finite,
    nothing is changed.

    Run it once before capturing it, and again after rates other than ``lr`` were changed: it reads them when it runs.
    In a replay it does not see that 16-bit parameters were written in place since (a mask, loaded weights): call
    `prepare` before the replay, and the master weights follow. The step counts are copied back to the host by
    ``state_dict``, ``settle`` or the next ``optimizer.step``. After ``optimizer.step`` the counts stay on the host, so
    a graph must be captured again; so it must after parameters were added, frozen or unfrozen and after
    ``load_state_dict``: until then replays update what there was before, which is kept for them.

    Args:
        optimizer: an `AdamW` or a `Lamb`.
        lr: () or (1,) float32 on the device, for all groups, times their "lr_scale" if they have one; ``group["lr"]``
            is not read.
        max_norm: the largest norm, for clipping; None for no clipping.
        grad_scale: () or (1,) float32 on the device, a factor on the gradients (the inverse of a loss scale), or None.

    Returns:
        the norm, and whether the step was made.

    Raises:
        InputError: ``lr`` or ``grad_scale`` is not such a tensor.
        BackendError: the step is being captured without having run before, with these rates and gradients.
    """
    rows = prepare(optimizer)
    if grad_scale is None:
        grad_scale = rows.one
    for name, value in (("lr", lr), ("grad_scale", grad_scale)):
        if not isinstance(value, Tensor) or value.numel() != 1 or value.dtype != torch.float32:
            raise InputError(f"{name} must be one float32 number in a tensor, got {value!r}")
        if value.device != rows.device:
            raise InputError(f"{name} must be on the parameters' device {rows.device}, got {value.device}")
    batches = optimizer.collect_uncounted(ensured=True)
    if not batches:
        return Outcome(torch.zeros((), device=rows.device), torch.ones((), device=rows.device))
    first, kind = optimizer.param_groups[0], optimizer.kind
    most = float(first["max_grad_norm"]) if kind == "lamb" and divides_by_norm(first) else math.inf
    most_clip = math.inf if max_norm is None else float(max_norm)
    if is_capturing(rows.device):
        _keep(optimizer, rows, batches)
    outcome = _dispatch.call("device_step", kind, batches, rows, lr.reshape(1), grad_scale.reshape(1), most_clip, most)
    optimizer.note_synced(batches)
    return outcome


@_dispatch.register("device_step", "reference")
def _device_step(
    kind: str, batches: list[Batch], rows: Rows, lr: Tensor, grad_scale: Tensor, max_norm: float, most_norm: float
) -> Outcome:
    """The step in torch's own arithmetic, tensor by tensor, on any device and without waiting for it."""
    squares = [g.to(torch.float64).square().sum() for batch in batches for g in batch.gradients]
    norm = torch.stack(squares).sum().sqrt() * grad_scale[0].abs().double()
    finite = torch.isfinite(norm)
    clip = clip_factor(norm, max_norm)
    scale = grad_scale[0] * clip / (norm * clip / most_norm).clamp(min=1.0)
    row_of = {id(p): i for i, p in enumerate(rows.params)}
    for batch in batches:
        for i, p in enumerate(batch.params):
            count = rows.counts[row_of[id(p)]]
            count += finite.to(count.dtype)
            _update(kind, batch, i, count, lr[0], scale, finite)
        write_back(batch)
    return Outcome(norm.float(), finite.float())


def _update(kind: str, batch: Batch, i: int, count: Tensor, lr: Tensor, scale: Tensor, finite: Tensor) -> None:
    group, target, first, second = batch.group, batch.targets[i], batch.first[i], batch.second[i]
    beta1, beta2 = group["betas"]
    g = batch.gradients[i].to(target.dtype) * scale.to(target.dtype)
    m, v = torch.lerp(first, g, 1 - beta1), second * beta2 + (1 - beta2) * g * g
    roots, direction = v.sqrt(), m
    if is_corrected(kind, group):
        # The count is 0 if the very first step is not made; clamped to avoid a division by zero.
        step = count.clamp(min=1).double()
        roots = roots / (1 - beta2**step).sqrt().to(target.dtype)
        direction = m / (1 - beta1**step).to(target.dtype)
    u = direction / (roots + group["eps"]) + group["weight_decay"] * target
    rate = (lr * lr_scale(group)).to(target.dtype)
    if kind == "lamb" and has_trust(group):
        rate = rate * trust_ratios(group, target.norm(), u.norm())
    for old, new in ((target, target - rate * u), (first, m), (second, v)):
        old.copy_(torch.where(finite, new, old))
