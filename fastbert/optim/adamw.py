"""AdamW as BERT was trained with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from ..ops import _dispatch
from .base import Batch, MasterWeightOptimizer, scaled_gradients, write_back


class AdamW(MasterWeightOptimizer):
    """m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2;  p -= lr (m / (sqrt(v) + eps) + weight_decay p).

    Args:
        params: parameters, or groups of them.
        lr: learning rate.
        betas: b1 and b2.
        eps: added to the root of the second moment.
        weight_decay: decoupled (Loshchilov & Hutter 2019).
        correct_bias: divides m and v by 1 - b^step (Kingma & Ba 2015), as torch.optim.AdamW does; BERT's own code does
            not.

    Raises:
        InputError: a rate that makes no sense.
    """

    def __init__(
        self,
        params: Iterable,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        correct_bias: bool = False,
    ) -> None:
        super().__init__(
            params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "correct_bias": correct_bias}
        )

    @torch.no_grad()
    def step(self, closure: Callable | None = None, *, grad_scale: float = 1.0):
        """One update of every parameter that has a gradient.

        Args:
            closure: computes the loss and its gradients anew; its value is returned.
            grad_scale: gradients count times this, as if they had been multiplied by it before.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        batches = self._collect()
        if batches:
            _dispatch.call("adamw", batches, grad_scale)
        return loss


@_dispatch.register("adamw", "reference")
def _adamw(batches: list[Batch], scale: float = 1.0) -> None:
    """The update in torch's own multi-tensor arithmetic."""
    for batch in batches:
        group, targets, first, second = batch.group, batch.targets, batch.first, batch.second
        gradients = scaled_gradients(batch, scale)
        beta1, beta2 = group["betas"]
        torch._foreach_lerp_(first, gradients, 1 - beta1)
        torch._foreach_mul_(second, beta2)
        torch._foreach_addcmul_(second, gradients, gradients, 1 - beta2)
        roots = torch._foreach_sqrt(second)
        rate = group["lr"]
        if group["correct_bias"]:
            torch._foreach_div_(roots, [(1 - beta2**step) ** 0.5 for step in batch.steps])
            rates = [-rate / (1 - beta1**step) for step in batch.steps]
        else:
            rates = [-rate] * len(targets)
        torch._foreach_add_(roots, group["eps"])
        if group["weight_decay"]:
            torch._foreach_mul_(targets, 1 - rate * group["weight_decay"])
        torch._foreach_addcdiv_(targets, first, roots, rates)
        write_back(batch)
