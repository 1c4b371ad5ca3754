"""The optimiser that a recipe names."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .. import optim
from .config import PretrainConfig


def make_optimizer(
    config: PretrainConfig, model: torch.nn.Module, idle: Sequence[torch.nn.Parameter] = ()
) -> torch.optim.Optimizer:
    """AdamW or LAMB over the model's parameters, without weight decay on biases and LayerNorm.

    Args:
        config: the recipe.
        model: the model.
        idle: parameters that get no gradient from any loss. They do not decay either: under DeepSpeed their gradients
            are zeros, and they would decay; elsewhere they have no gradients and are not updated.
    """
    groups = optim.param_groups(model, config.weight_decay, without_decay=idle)
    rates = {"lr": config.lr, "betas": tuple(config.betas), "eps": config.eps}
    if config.optimizer == "lamb":
        # The engine clips to the same norm first, so LAMB's own clipping changes nothing.
        return optim.Lamb(groups, **rates, variant=config.lamb_variant, max_grad_norm=config.clip)
    return optim.AdamW(groups, **rates, correct_bias=config.correct_bias)
