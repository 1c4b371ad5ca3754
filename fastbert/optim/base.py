"""The base of both optimisers: state in float32 and, for 16-bit parameters, float32 master weights."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..errors import InputError
from ..ops import _dispatch, _few_rows

_WIDE = (torch.float32, torch.float64)


@dataclass
class Batch:
    """The parameters of one group that have a gradient, and the tensors that an update reads and writes.

    Gradients have any dtype; targets (the master weights, or the parameters themselves) and moments are float32, or
    float64 for float64 parameters.
    """

    group: dict
    params: list[Tensor]
    gradients: list[Tensor]
    targets: list[Tensor]
    first: list[Tensor]
    second: list[Tensor]
    steps: list[int]


def _without_dynamo(method: Callable) -> Callable:
    """torch's own method, without its wrapper's import of torch._dynamo, which takes seconds.

    The wrapper keeps the compiler out of the method, which is not needed if the compiler was never imported.
    """
    plain = getattr(method, "__wrapped__", method)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return (method if "torch._dynamo" in sys.modules else plain)(self, *args, **kwargs)

    call.__name__, call.__doc__ = method.__name__, method.__doc__
    return call


def _check_rates(group: dict) -> None:
    for name in ("lr", "eps", "weight_decay"):
        # A rate may also be a tensor with one element.
        if isinstance(group[name], str) or not 0 <= group[name] < math.inf:
            raise InputError(f"{name} must be at least 0 and finite, got {group[name]!r}")
    betas = group["betas"]
    if not isinstance(betas, Sequence) or len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
        raise InputError(f"betas must be two numbers, at least 0 and below 1, got {betas!r}")


def _check_dense(gradients: list[Tensor]) -> None:
    for gradient in gradients:
        if gradient.layout is not torch.strided:
            raise InputError(
                f"gradients must be dense, got one in {gradient.layout}, as of an embedding with sparse=True"
            )


class MasterWeightOptimizer(torch.optim.Optimizer):
    """Base class of `AdamW` and `Lamb`: collects the tensors of all groups for one call that updates them.

    Parameters in bfloat16 or float16 get a float32 copy, ``master``, to which updates are applied: small updates would
    be lost by rounding to 16 bits. If a parameter is written between two steps (loaded weights, a mask), the next step
    continues from its new values; writes through ``.data``, which torch does not count, are not noticed.
    """

    # The op that computes the update.
    kind: ClassVar[str]

    _add_param_group = _without_dynamo(torch.optim.Optimizer.add_param_group)
    zero_grad = _without_dynamo(torch.optim.Optimizer.zero_grad)
    _state_dict = _without_dynamo(torch.optim.Optimizer.state_dict)
    _load_state_dict = _without_dynamo(torch.optim.Optimizer.load_state_dict)

    # Set by `device.prepare`: from then on the step counts are on the device.
    rows = None

    @property
    def kept_for_graphs(self) -> dict[int, object]:
        """What captured steps read and write, by its address (`id`), after it was replaced too: whoever captured them
        may replay them. A copy or a pickle of an optimiser does not have it."""
        return self.__dict__.setdefault("captured", {})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's. Raises InputError for a rate that is out of range."""
        _check_rates({**self.defaults, **param_group})
        self._add_param_group(param_group)

    def settle(self) -> None:
        """Copies step counts that are on the device back into the states; waits for the device."""
        if self.rows is not None:
            self.rows.settle()

    def __getstate__(self) -> dict:
        self.settle()
        return super().__getstate__()

    def state_dict(self) -> dict[str, Any]:
        """As torch's; waits for step counts that are on the device."""
        self.settle()
        return self._state_dict()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, *, grad_scale: float = 1.0) -> Any:
        """Updates every parameter that has a gradient.

        Args:
            closure: computes the loss and its gradients again; its value is returned.
            grad_scale: a factor that is applied to the gradients while they are read.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        batches = self._collect()
        if batches:
            self._update(batches, grad_scale)
            self.note_synced(batches)
        return loss

    def _update(self, batches: list[Batch], grad_scale: float) -> None:
        """Updates the parameters and states of `_collect`."""
        _dispatch.call(self.kind, batches, grad_scale)

    def ensure_state(self, p: Tensor) -> dict[str, Any]:
        """The parameter's entry of ``state``, created if it is missing."""
        state = self.state[p]
        wide = torch.float64 if p.dtype == torch.float64 else torch.float32
        if not state:
            if not p.is_floating_point():
                raise InputError(f"parameters must be real floating numbers, got one of {p.dtype}")
            state["step"] = 0
            few_rows = p.grad is not None and _few_rows.written_chunks(p.grad) is not None
            zeros = _few_rows.untouched_zeros if few_rows else torch.zeros_like
            state["exp_avg"], state["exp_avg_sq"] = zeros(p, dtype=wide), zeros(p, dtype=wide)
        # The parameter may have another dtype than when its state was created: the model was converted, or the state
        # was loaded from a run in another dtype.
        for name in ("exp_avg", "exp_avg_sq", "master"):
            if name in state and state[name].dtype != wide:
                state[name] = state[name].to(wide)
        self._sync_master(p, state, wide)
        return state

    def ensure_states(self, params: list[Tensor]) -> list[dict[str, Any]]:
        """`ensure_state` of each parameter, which is not called where it has nothing to do, as in nearly every step."""
        return [
            state
            if "master" not in (state := self.state[p])
            and "exp_avg" in state
            and p.dtype is state["exp_avg"].dtype is state["exp_avg_sq"].dtype in _WIDE
            else self.ensure_state(p)
            for p in params
        ]

    @torch.no_grad()
    def _sync_master(self, p: Tensor, state: dict[str, Any], wide: torch.dtype) -> None:
        """Creates or drops the master, and copies into it what was written to the parameter since the last update."""
        master = state.get("master")
        written = self._synced_versions.get(p, p._version) != p._version
        if p.dtype == wide:
            if master is not None:  # the parameter had 16 bits before
                del state["master"]
                if not written:
                    p.copy_(master)
        elif master is None:
            state["master"] = p.detach().to(wide)
            self._synced_versions[p] = p._version
        elif written:
            master.copy_(torch.where(p == master.to(p.dtype), master, p.to(wide)))
            self._synced_versions[p] = p._version

    @property
    def _synced_versions(self) -> dict[Tensor, int]:
        """The version of each parameter with a master when the two last held the same values; a later version means
        that someone wrote to it. Created on first use, since a copy or a pickle of an optimiser does not have it."""
        return self.__dict__.setdefault("synced_versions", {})

    def note_synced(self, batches: list[Batch]) -> None:
        """Notes that parameters and masters hold the same values: an update has rounded the masters into the
        parameters."""
        self._synced_versions.update(
            (p, p._version) for b in batches for p, t in zip(b.params, b.targets, strict=True) if t is not p
        )

    def collect_uncounted(self, ensured: bool = False) -> list[Batch]:
        """As `_collect`, but without counting the step. If the counts are on the device, those in the states are old.

        Args:
            ensured: whether `ensure_states` was just called for all parameters with a gradient.
        """
        batches = [self._collect_group(group, ensured) for group in self.param_groups]
        return [batch for batch in batches if batch.params]

    def _collect(self) -> list[Batch]:
        """Creates missing states and counts the step; groups without any gradient are left out."""
        self.settle()
        self.rows = None
        batches = self.collect_uncounted()
        for batch in batches:
            for i, p in enumerate(batch.params):
                self.state[p]["step"] += 1
                batch.steps[i] = self.state[p]["step"]
        return batches

    def _collect_group(self, group: dict, ensured: bool) -> Batch:
        pairs = [(p, gradient) for p in group["params"] if (gradient := p.grad) is not None]
        params, gradients = [p for p, _ in pairs], [gradient for _, gradient in pairs]
        states = [self.state[p] for p in params] if ensured else self.ensure_states(params)
        _check_dense(gradients)
        return Batch(
            group,
            params,
            gradients,
            targets=[state.get("master", p) for p, state in zip(params, states, strict=True)],
            first=[state["exp_avg"] for state in states],
            second=[state["exp_avg_sq"] for state in states],
            steps=[state["step"] for state in states],
        )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's, but moments and master weights stay float32; torch would cast them to the parameters' dtype.

        Raises:
            InputError: it is the state of another kind of optimiser.
        """
        for group in state_dict["param_groups"]:
            # After a state was loaded, torch adds this key to the defaults, but not to the groups.
            if missing := self.defaults.keys() - group.keys() - {"differentiable"}:
                raise InputError(
                    f"expected the state_dict of a fastbert.optim.{type(self).__name__}, got one whose groups have no "
                    f"{', '.join(sorted(missing))}"
                )
        seen: list[dict[str, Any]] = []
        hook = self.register_load_state_dict_pre_hook(lambda _, given: seen.append(given))  # the last to be called
        try:
            self._load_state_dict(state_dict)
        finally:
            hook.remove()
        state_dict = seen[-1]  # what hooks of the caller's have made of it
        order = [p for group in self.param_groups for p in group["params"]]
        indices = [i for group in state_dict["param_groups"] for i in group["params"]]
        for p, index in zip(order, indices, strict=True):
            for name, value in state_dict["state"].get(index, {}).items():
                if isinstance(value, Tensor):
                    self.state[p][name] = value.detach().clone().to(p.device)
            self._synced_versions[p] = p._version


def scaled_gradients(batch: Batch, scale: Tensor | float) -> list[Tensor]:
    """The gradients in the targets' dtype, times ``scale``; torch's arithmetic, for the reference backend."""
    gradients = [g.to(t.dtype) for g, t in zip(batch.gradients, batch.targets, strict=True)]
    if isinstance(scale, float) and scale == 1.0:
        return gradients
    return [g * (scale.to(g.device, g.dtype) if isinstance(scale, Tensor) else scale) for g in gradients]


def advance(batch: Batch, gradients: list[Tensor]) -> list[Tensor]:
    """Updates both moments; returns the square roots of the second, as new tensors."""
    beta1, beta2 = batch.group["betas"]
    torch._foreach_lerp_(batch.first, gradients, 1 - beta1)
    torch._foreach_mul_(batch.second, beta2)
    torch._foreach_addcmul_(batch.second, gradients, gradients, 1 - beta2)
    return list(torch._foreach_sqrt(batch.second))


def write_back(batch: Batch) -> None:
    """Rounds the master weights into the parameters."""
    for p, target in zip(batch.params, batch.targets, strict=True):
        if p is not target:
            p.copy_(target)


@_dispatch.register("grad_norm", "reference")
def _grad_norm(tensors: list[Tensor]) -> Tensor:
    wide = torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32
    norms = torch._foreach_norm(tensors, dtype=wide)
    return torch.stack([norm.to(norms[0].device) for norm in norms]).norm()


def global_norm(tensors: list[Tensor]) -> Tensor:
    """The L2 norm of all elements of all tensors: a () float32 tensor, or float64 if a tensor is float64."""
    _check_dense(tensors)
    return _dispatch.call("grad_norm", tensors)


def clip_factor(norm: Tensor, max_norm: float) -> Tensor:
    """The factor that clips gradients of this norm; 1 if the norm is not finite."""
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    return torch.where(torch.isfinite(norm), factor, torch.ones_like(factor))
