"""LAMB: Adam's direction, scaled tensor by tensor (You et al. 2020, algorithm 2)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from ..errors import InputError
from ..ops import _dispatch
from .base import Batch, MasterWeightOptimizer, advance, global_norm, scaled_gradients, write_back
from .rates import divides_by_norm, has_trust

VARIANTS = ("nvlamb", "apex", "clamped")


class Lamb(MasterWeightOptimizer):
    """LAMB: u = m' / (sqrt(v') + eps) + weight_decay p;  p -= lr * trust * u,  trust = |p| / |u| for each tensor.

    m' and v' are Adam's moments with bias correction. Where |p| or |u| is 0, trust is 1, whatever ``trust_range``.

    Args:
        params, lr, betas, eps, weight_decay: as in `AdamW`.
        variant: "nvlamb" first scales the gradients down to a global norm of ``max_grad_norm`` if it is larger, and
            gives tensors without weight decay a trust of 1 (NVIDIA's BERT recipe, apex's FusedLAMB by default); "apex"
            scales in the same way, but every tensor has its own trust (FusedLAMB with use_nvlamb=True); "clamped" does
            not scale, has no bias correction, and keeps trust within ``trust_range`` (DeepSpeed's BERT recipe).
        max_grad_norm: the largest norm of the gradients of all groups together; None or 0 turns the scaling off.
        trust_range: the smallest and the largest trust of "clamped".

    Raises:
        InputError: a rate is negative or not finite, a beta is not in [0, 1), ``trust_range`` is no range, or
            ``variant`` is unknown.
    """

    kind = "lamb"

    def __init__(
        self,
        params: Iterable[torch.Tensor] | Iterable[dict[str, Any]],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        variant: str = "nvlamb",
        max_grad_norm: float | None = 1.0,
        trust_range: tuple[float, float] = (0.01, 0.3),
    ) -> None:
        if variant not in VARIANTS:
            raise InputError(f"variant must be one of {', '.join(VARIANTS)}, got {variant!r}")
        if max_grad_norm is not None and not max_grad_norm >= 0:
            raise InputError(f"max_grad_norm must be at least 0, got {max_grad_norm}")
        if len(trust_range) != 2 or not 0 <= trust_range[0] <= trust_range[1]:
            raise InputError(
                f"trust_range must be two numbers, at least 0 and the smaller one first, got {trust_range!r}"
            )
        rates = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        # In the groups: attributes would be part of neither a state_dict nor a copy of the optimiser.
        own = {"variant": variant, "max_grad_norm": max_grad_norm, "trust_range": trust_range}
        super().__init__(params, {**rates, **own})

    def _divisor(self, grad_scale: float) -> torch.Tensor | None:
        """The number by which all gradients are divided first, at least 1; None if the variant does not divide them."""
        first = self.param_groups[0]
        if not divides_by_norm(first):
            return None
        gradients = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        return (global_norm(gradients) * grad_scale / first["max_grad_norm"]).clamp(min=1.0)

    def _update(self, batches: list[Batch], grad_scale: float) -> None:
        divisor = self._divisor(grad_scale)
        super()._update(batches, grad_scale if divisor is None else grad_scale / divisor)


@_dispatch.register("lamb", "reference")
def _lamb(batches: list[Batch], scale: torch.Tensor | float = 1.0) -> None:
    """The update in torch's own multi-tensor arithmetic."""
    for batch in batches:
        updates = directions(batch, scaled_gradients(batch, scale))
        trusts = _trusts(batch.group, batch.targets, updates)
        for target, update, trust in zip(batch.targets, updates, trusts, strict=True):
            target.add_(update * trust, alpha=-float(batch.group["lr"]))
        write_back(batch)


def directions(batch: Batch, gradients: list[torch.Tensor]) -> list[torch.Tensor]:
    """Updates the moments and returns u of each tensor."""
    group = batch.group
    beta1, beta2 = group["betas"]
    roots = advance(batch, gradients)
    numerators = batch.first
    if group["variant"] != "clamped":
        torch._foreach_div_(roots, [(1 - beta2**step) ** 0.5 for step in batch.steps])
        numerators = torch._foreach_div(numerators, [1 - beta1**step for step in batch.steps])
    torch._foreach_add_(roots, group["eps"])
    updates = torch._foreach_div(numerators, roots)
    if group["weight_decay"]:
        torch._foreach_add_(updates, batch.targets, alpha=group["weight_decay"])
    return list(updates)


def _trusts(group: dict, targets: list[torch.Tensor], updates: list[torch.Tensor]) -> list[torch.Tensor]:
    if not has_trust(group):
        return [torch.ones((), device=u.device) for u in updates]
    norms = [torch.stack(torch._foreach_norm(tensors)) for tensors in (targets, updates)]
    return list(trust_ratios(group, *norms).unbind())


def trust_ratios(group: dict, weights: torch.Tensor, updates: torch.Tensor) -> torch.Tensor:
    """The variant's trust ratios |p| / |u|, from the norms of tensors and of their updates, which have one shape."""
    trust = weights / updates
    if group["variant"] == "clamped":
        trust = trust.clamp(*group["trust_range"])
    return torch.where((weights > 0) & (updates > 0), trust, torch.ones_like(trust))
