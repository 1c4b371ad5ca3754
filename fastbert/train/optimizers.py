"""The optimiser that a recipe names."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .. import optim
from .config import PretrainConfig


def make_optimizer(
    config: PretrainConfig, model: torch.nn.Module, idle: Sequence[torch.nn.Parameter] = ()
) -> torch.optim.Optimizer:
    """AdamW or LAMB over the model's parameters; biases and LayerNorm do not decay.

    Args:
        idle: parameters of which no loss will have a gradient. They do not decay either: DeepSpeed's gradients of them
            are zeros, where others have none and leave them as they are.
    """
    groups = optim.param_groups(model, config.weight_decay, without_decay=idle)
    rates = {"lr": config.lr, "betas": tuple(config.betas), "eps": config.eps}
    if config.optimizer == "lamb":
        # The engine has clipped already: LAMB's own division by the norm then finds nothing to divide.
        return optim.Lamb(groups, **rates, variant=config.lamb_variant, max_grad_norm=config.clip)
    return optim.AdamW(groups, **rates, correct_bias=config.correct_bias)
