"""AdamW as BERT was trained with it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from ..ops import _dispatch
from .base import Batch, MasterWeightOptimizer, advance, scaled_gradients, write_back


class AdamW(MasterWeightOptimizer):
    """AdamW: m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2;  p -= lr (m / (sqrt(v) + eps) + weight_decay p).

    m and v are float32; parameters in bfloat16 or float16 get a float32 copy that is updated in their place.

    Args:
        params: parameters, or groups of them (`param_groups`).
        lr: learning rate.
        betas: b1 and b2, the decay rates of the moments.
        eps: added to the root of the second moment.
        weight_decay: decoupled (Loshchilov & Hutter 2019).
        correct_bias: whether m and v are divided by 1 - b^step (Kingma & Ba 2015), as torch.optim.AdamW does; BERT's
            own code does not.

    Raises:
        InputError: a rate is negative or not finite, or a beta is not in [0, 1).
    """

    kind = "adamw"

    def __init__(
        self,
        params: Iterable[torch.Tensor] | Iterable[dict[str, Any]],
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        correct_bias: bool = False,
    ) -> None:
        super().__init__(
            params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "correct_bias": correct_bias}
        )


@_dispatch.register("adamw", "reference")
def _adamw(batches: list[Batch], scale: float = 1.0) -> None:
    """The update in torch's own multi-tensor arithmetic."""
    for batch in batches:
        group, targets = batch.group, batch.targets
        beta1, beta2 = group["betas"]
        roots = advance(batch, scaled_gradients(batch, scale))
        rate = float(group["lr"])  # may be a tensor, which torch cannot mix with numbers
        if group["correct_bias"]:
            torch._foreach_div_(roots, [(1 - beta2**step) ** 0.5 for step in batch.steps])
            rates = [-rate / (1 - beta1**step) for step in batch.steps]
        else:
            rates = [-rate] * len(targets)
        torch._foreach_add_(roots, group["eps"])
        if group["weight_decay"]:
            torch._foreach_mul_(targets, 1 - rate * group["weight_decay"])
        torch._foreach_addcdiv_(targets, batch.first, roots, rates)
        write_back(batch)
