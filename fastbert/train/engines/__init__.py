"""The engines that run a training step, one per file, all with the interface of `fastbert.train.engine.LocalEngine`.

ddp                             torch's DistributedDataParallel
zero                            DeepSpeed
deepspeed_config, universal     its configuration, and its checkpoints for any number of ranks
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..distributed import World
from ..engine import LocalEngine


def make(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    world: World,
    *,
    deepspeed: dict | None = None,
    idle: Sequence[torch.nn.Parameter] = (),
    **options,
) -> LocalEngine:
    """The engine for the number of processes.

    Args:
        model, optimizer: as in `LocalEngine`.
        world: this process among those that train together; their process group is open if there are several.
        deepspeed: a configuration (`deepspeed_config.configuration`), to train under DeepSpeed.
        idle: parameters that get no gradient from any loss.
        options: those of `LocalEngine`.

    Raises:
        InputError: DeepSpeed is not installed, or does not support the precision on this machine.
    """
    if deepspeed is not None:
        from .zero import DeepSpeedEngine

        return DeepSpeedEngine(model, optimizer, world, deepspeed, **options)
    if world.size == 1:
        return LocalEngine(model, optimizer, **options)
    from .ddp import DDPEngine

    return DDPEngine(model, optimizer, world, idle, **options)
