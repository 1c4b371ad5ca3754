"""Fine-tuning in several processes, started by torchrun or deepspeed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import InputError
from ..train.deepspeed_options import DeepSpeedOptions

if TYPE_CHECKING:
    import torch

    from ..train.engine import LocalEngine
    from .config import FinetuneConfig


def options_of(config: FinetuneConfig) -> DeepSpeedOptions:
    """The options that ask for DeepSpeed. Raises InputError for what fine-tuning does not support under it."""
    options = DeepSpeedOptions(config.deepspeed, config.zero)
    if options.asked and config.precision != "fp32":
        raise InputError(
            f"fine-tuning under DeepSpeed must be in fp32, got {config.precision}; torch DDP has bf16 and fp16"
        )
    return options


def deepspeed_of(config: FinetuneConfig) -> dict | None:
    """DeepSpeed's configuration; None without DeepSpeed. Raises InputError as `options_of` does, for a file that does
    not fit the recipe, and for stage 3."""
    from ..train.engines import deepspeed_config

    options = options_of(config)
    if not options.asked:
        return None
    found = deepspeed_config.configuration(options, config.precision, config.clip)
    if deepspeed_config.stage(found) == 3:
        raise InputError("fine-tuning goes up to ZeRO stage 2, whose processes each have the whole model, got 3")
    return found


def make_engine(model: torch.nn.Module, optimizer: torch.optim.Optimizer, config: FinetuneConfig) -> LocalEngine:
    """The engine for the number of processes; moves the model to the device of this one."""
    from ..train import distributed, engines

    world, deepspeed = distributed.current(), deepspeed_of(config)
    distributed.place(model, world)
    settings = {"precision": config.precision, "clip": config.clip, "seed": config.seed, "deepspeed": deepspeed}
    return engines.make(model, optimizer, world, **settings)
