"""LAMB: Adam's direction, scaled tensor by tensor (You et al. 2020, algorithm 2)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from ..errors import InputError
from .adamw import check_rates
from .base import MasterWeightOptimizer

VARIANTS = ("nvlamb", "apex", "clamped")


class Lamb(MasterWeightOptimizer):
    """u = m' / (sqrt(v') + eps) + weight_decay p;  p -= lr * trust * u,  trust = |p| / |u| for each tensor.

    m' and v' are Adam's moments with bias correction. Where |p| or |u| is 0, trust is 1.

    Args:
        params, lr, betas, eps, weight_decay: as in `AdamW`.
        variant: "nvlamb" = gradients are first divided by their global norm where that is above ``max_grad_norm``, and
            tensors without weight decay have trust 1; "apex" = the same division, every tensor has its trust; "clamped"
            = no division, no bias correction, trust kept within ``trust_range`` (DeepSpeed).
        max_grad_norm: for the division.
        trust_range: for "clamped".

    Raises:
        InputError: a rate that makes no sense, or another variant.
    """

    def __init__(
        self,
        params: Iterable,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        variant: str = "nvlamb",
        max_grad_norm: float = 1.0,
        trust_range: tuple[float, float] = (0.01, 0.3),
    ) -> None:
        check_rates(lr, betas, eps, weight_decay)
        if variant not in VARIANTS:
            raise InputError(f"variant must be one of {', '.join(VARIANTS)}, got {variant!r}")
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        self.variant, self.max_grad_norm, self.trust_range = variant, max_grad_norm, trust_range

    def _divisor(self) -> torch.Tensor | None:
        """What gradients are divided by before anything else, over all groups."""
        if self.variant == "clamped":
            return None
        gradients = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        if not gradients:
            return None
        norm = torch.stack(torch._foreach_norm(gradients, dtype=torch.float32)).norm()
        return (norm / self.max_grad_norm).clamp(min=1.0)

    @torch.no_grad()
    def step(self, closure: Callable | None = None):
        """One update of every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        divisor = self._divisor()
        for group in self.param_groups:
            params, gradients, targets, first, second = self._collect(group)
            if not params:
                continue
            if divisor is not None:
                gradients = [g / divisor for g in gradients]
            updates = self._directions(group, params, gradients, targets, first, second)
            trusts = self._trusts(group, targets, updates)
            for target, update, trust in zip(targets, updates, trusts, strict=True):
                target.add_(update * trust, alpha=-group["lr"])
            self._write_back(params, targets)
        return loss

    def _directions(self, group, params, gradients, targets, first, second) -> list[torch.Tensor]:
        beta1, beta2 = group["betas"]
        torch._foreach_lerp_(first, gradients, 1 - beta1)
        torch._foreach_mul_(second, beta2)
        torch._foreach_addcmul_(second, gradients, gradients, 1 - beta2)
        roots = torch._foreach_sqrt(second)
        numerators = first
        if self.variant != "clamped":
            steps = [self.state[p]["step"] for p in params]
            torch._foreach_div_(roots, [(1 - beta2**step) ** 0.5 for step in steps])
            numerators = torch._foreach_div(first, [1 - beta1**step for step in steps])
        torch._foreach_add_(roots, group["eps"])
        updates = torch._foreach_div(numerators, roots)
        if group["weight_decay"]:
            torch._foreach_add_(updates, targets, alpha=group["weight_decay"])
        return list(updates)

    def _trusts(self, group, targets, updates) -> list[torch.Tensor]:
        if self.variant == "nvlamb" and not group["weight_decay"]:
            return [torch.ones((), device=u.device) for u in updates]
        weights = torch.stack(torch._foreach_norm(targets))
        norms = torch.stack(torch._foreach_norm(updates))
        trust = torch.where((weights > 0) & (norms > 0), weights / norms, torch.ones_like(norms))
        if self.variant == "clamped":
            trust = trust.clamp(*self.trust_range)
        return list(trust.unbind())
