"""DeepSpeed's configuration: from --zero, or from the user's file, completed from the run's options."""

from __future__ import annotations

import os
from pathlib import Path

from ...errors import InputError
from ...text_files import read_json
from ..deepspeed_options import DeepSpeedOptions

AUTO = "auto"


def configuration(options: DeepSpeedOptions, precision: str, clip: float) -> dict:
    """The configuration for `deepspeed.initialize`.

    DeepSpeed's batch sizes are set to 1: here a micro-batch has a token budget and no fixed number of sequences, and
    the loop tells DeepSpeed where a step ends. Other values that the file omits or calls "auto" are filled in; those
    that it gives must agree with the run's options.

    Args:
        options: the user's file, or the stage of ZeRO.
        precision: the run's; "fp8" is refused.
        clip: the run's largest norm of the gradient.

    Raises:
        InputError: the file is not a configuration, contradicts an option, or names an optimiser or a scheduler, which
            are set by the run's options; or DeepSpeed does not support the precision.
    """
    if precision == "fp8":
        raise InputError("precision fp8 does not go with DeepSpeed, which keeps the weights themselves in 16 bits")
    given = {"zero_optimization": _stage(options)} if options.file is None else _read(options.file)
    where = options.file or "zero"
    for section in ("optimizer", "scheduler"):
        if given.get(section, AUTO) != AUTO:
            raise InputError(f"{where}: the {section} is the run's (optimizer, lr, schedule), got one in the file")
    result = {name: value for name, value in given.items() if name not in ("optimizer", "scheduler")}
    for name in ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"):
        if result.pop(name, AUTO) not in (AUTO, 1):
            raise InputError(f"{where}: {name} is the run's (token_budget, accumulate): leave it out or say auto")
    result |= {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1}
    result["gradient_clipping"] = _agreed(where, "gradient_clipping", given.get("gradient_clipping", AUTO), clip)
    for kind in ("bf16", "fp16"):
        section = dict(given.get(kind, {}))
        enabled = _agreed(where, f"{kind}.enabled", section.get("enabled", AUTO), precision == kind)
        result[kind] = {**section, "enabled": enabled}
    if precision == "bf16":
        _set_sums(where, result)
    result.setdefault("zero_allow_untested_optimizer", True)
    result.setdefault("zero_force_ds_cpu_optimizer", False)
    result.setdefault("steps_per_print", None)
    return result


def stage(configuration: dict) -> int:
    """The stage of ZeRO that a configuration asks for."""
    return configuration.get("zero_optimization", {}).get("stage", 0)


def offloaded(configuration: dict) -> tuple[str, ...]:
    """What a configuration keeps out of the GPU's memory: the names of fields of `plan_memory.Memory`."""

    def is_offloaded(name: str) -> bool:
        section = configuration.get("zero_optimization", {}).get(name)
        device = section.get("device") if isinstance(section, dict) else None
        return device not in (None, "none")

    shards_all, parts = stage(configuration) == 3, []
    if shards_all and is_offloaded("offload_param"):
        parts.append("parameters")
    if is_offloaded("offload_optimizer"):
        # Before stage 3, the float32 sums of gradients stay on the GPU.
        parts += ["gradients", "optimizer"] if shards_all else ["optimizer"]
    return tuple(parts)


def _stage(options: DeepSpeedOptions) -> dict:
    section: dict = {"stage": options.zero}
    if options.zero:
        section |= {"overlap_comm": False, "contiguous_gradients": True}
    if options.offload:
        section["offload_optimizer"] = {"device": "cpu"}
        if options.zero == 3:
            section["offload_param"] = {"device": "cpu"}
    return section


def _set_sums(where: str, configuration: dict) -> None:
    """Sets the type in which the gradients of a bf16 run are added up, unless the file does."""
    sums = configuration.setdefault("data_types", {})
    if stage(configuration) >= 2:
        # Accumulated in bfloat16, small gradients would be lost in the sum of many micro-batches.
        sums.setdefault("grad_accum_dtype", "fp32")
    elif sums.setdefault("grad_accum_dtype", "bf16") != "bf16":
        # DeepSpeed would use another optimiser class, whose gradients differ from those of the other stages.
        raise InputError(
            f"{where}: bf16 with gradients added up in fp32 needs ZeRO stage 2 or 3, got {stage(configuration)}"
        )


def _agreed(where: str, name: str, said, run):
    if said not in (AUTO, run):
        raise InputError(f"{where}: {name} must be what the run's options say, {run}, or auto, got {said}")
    return run


def _read(path: str | os.PathLike) -> dict:
    if not Path(path).exists():
        raise InputError(f"{path}: expected a DeepSpeed configuration, found none")
    found = read_json(path)
    for section in ("zero_optimization", "bf16", "fp16", "data_types"):
        if not isinstance(found.get(section, {}), dict):
            raise InputError(f"{path}: expected {section} to be an object, got {type(found[section]).__name__}")
    if stage(found) not in range(4):
        raise InputError(f"{path}: expected zero_optimization.stage to be 0, 1, 2 or 3, got {stage(found)!r:.40}")
    return found
