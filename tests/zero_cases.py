"""What each process of train/test_zero.py runs: DeepSpeed's stages with our optimisers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import plain_lamb
import rank_runs
import sharded_cases
import torch
from torch import nn

from fastbert.errors import FastbertError
from fastbert.optim import AdamW, Lamb
from fastbert.train import distributed
from fastbert.train.engine import TrainingDiverged
from fastbert.train.engines import deepspeed_config
from fastbert.train.engines.deepspeed_config import DeepSpeedOptions

CLIP = 1.0


class Tensors(nn.Module):
    """Nothing but tensors; their gradients are what `forward` is given."""

    def __init__(self, arrays: list[np.ndarray]) -> None:
        super().__init__()
        self.tensors = nn.ParameterList([nn.Parameter(torch.tensor(a, dtype=torch.float32)) for a in arrays])

    def forward(self, gradients: list[torch.Tensor]) -> torch.Tensor:
        return sum((p * g).sum() for p, g in zip(self.tensors, gradients, strict=True))


def shares(gradient: np.ndarray, ranks: int, micro: int, seed: int) -> list[list[torch.Tensor]]:
    """Unequal summands of a gradient, one a micro-batch of each rank."""
    random = np.random.default_rng(seed)
    # Of the gradient's own size: the float32 sum of much larger ones would not be the gradient.
    parts = random.standard_normal((ranks * micro - 1, *gradient.shape)) * np.nanstd(gradient)
    parts = np.concatenate([parts, (gradient - parts.sum(0))[None]])
    return [[torch.tensor(parts[r * micro + m], dtype=torch.float32) for m in range(micro)] for r in range(ranks)]


def optimizer_of(model: Tensors, kind: str) -> torch.optim.Optimizer:
    params = list(model.tensors)
    groups = [{"params": params[a:b], "weight_decay": decay} for a, b, decay in sharded_cases.GROUPS]
    common = {"lr": sharded_cases.LR, "betas": (plain_lamb.BETA1, plain_lamb.BETA2), "eps": plain_lamb.EPS}
    if kind.startswith("adamw"):
        return AdamW(groups, **common, correct_bias=kind == "adamw-corrected")
    return Lamb(groups, **common, variant=kind, max_grad_norm=CLIP)


def engine_of(world, kind: str, options: DeepSpeedOptions, precision: str = "fp32", arrays=None):
    from fastbert.train.engines.zero import DeepSpeedEngine

    model = Tensors(sharded_cases.start_and_gradients(1.0)[0] if arrays is None else arrays)
    configuration = deepspeed_config.configuration(options, precision, CLIP)
    return DeepSpeedEngine(model, optimizer_of(model, kind), world, configuration, precision=precision, clip=CLIP)


def take_step(engine, gradients: list[np.ndarray], micro: int, seed: int) -> float:
    """A step whose gradient, summed over micro-batches and ranks, is this one."""
    world = engine.world
    parts = [shares(g, world.size, micro, seed)[world.rank] for g in gradients]
    for m in range(micro):
        engine.backward(lambda m=m: engine.forward([part[m] for part in parts]), last=m == micro - 1)
    return engine.step(sharded_cases.LR)


def poisoned(gradients: list[np.ndarray]) -> list[np.ndarray]:
    """With one number that is none, which falls into the last rank's last share."""
    bad = [g.copy() for g in gradients]
    bad[0][1, 1] = np.nan
    return bad


def whole(engine) -> list[torch.Tensor]:
    """Float32 weights; of stage 3 and low precision on rank 0 alone."""
    with engine.whole_weights():
        return [p.detach().float().clone() for p in engine.model.tensors]


def own(engine) -> list[torch.Tensor]:
    """What this rank's optimiser updates: masters, whole or shards."""
    inner = engine.deepspeed.optimizer
    params = [p for group in engine.optimizer.param_groups for p in group["params"]]
    return [p.detach().clone() for p in getattr(inner, "fp32_partitioned_groups_flat", params)]


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Also where DeepSpeed fills a shard up to the others' size with memory as it comes, which may hold a NaN."""
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def trained(
    world,
    kind: str,
    scale: float,
    options: DeepSpeedOptions,
    *,
    micro: int = 1,
    steps: int = sharded_cases.STEPS,
    poison: int | None = None,
    bug: str | None = None,
    precision: str = "fp32",
) -> dict:
    """What training came to.

    Args:
        poison: before this step comes another, with a NaN in one rank's gradient.
        bug: "shards as tensors", which is LAMB as it comes.
    """
    engine = engine_of(world, kind, options, precision)
    if bug == "shards as tensors":
        engine.optimizer.layouts = {}
    result = {"norms": [], "skipped": [], "versions": []}
    for step, gradients in enumerate(sharded_cases.start_and_gradients(scale)[1][:steps]):
        if step == poison:
            before = own(engine)
            result["norm of NaN"] = take_step(engine, poisoned(gradients), micro, step)
            result["kept"] = all(map(same_bits, before, own(engine)))
        versions = [p._version for p in engine.model.tensors]
        result["norms"].append(take_step(engine, gradients, micro, step))
        result["versions"] += [p._version - was for p, was in zip(engine.model.tensors, versions, strict=True)]
        result["skipped"].append(engine.skipped)
    result["weights"] = whole(engine)
    result["loss scale"] = getattr(engine.deepspeed.optimizer, "loss_scale", None)
    engine.deepspeed.destroy()
    return result


def expected(kind: str, scale: float, steps: int = sharded_cases.STEPS) -> list[np.ndarray]:
    """By the papers, with gradients clipped as DeepSpeed and torch clip."""
    params, gradients = sharded_cases.start_and_gradients(scale)
    clipped = []
    for step in gradients[:steps]:
        norm = np.sqrt(sum((g**2).sum() for g in step))
        clipped.append([g * min(1.0, CLIP / (norm + 1e-6)) for g in step])
    arguments = params, clipped, sharded_cases.DECAYS, sharded_cases.LR
    if kind.startswith("adamw"):
        return plain_lamb.adamw(*arguments, correct_bias=kind == "adamw-corrected")
    return plain_lamb.lamb(*arguments, kind)


def diverge(world, options: DeepSpeedOptions) -> tuple[str, bool]:
    """Five steps in a row with a NaN: (what is said, whether the weights are those of before)."""
    engine = engine_of(world, "nvlamb", options)
    gradients = sharded_cases.start_and_gradients(3.0)[1]
    take_step(engine, gradients[0], 1, 0)
    before, said = own(engine), ""
    try:
        for step in range(1, 6):
            take_step(engine, poisoned(gradients[step]), 1, step)
    except TrainingDiverged as error:
        said = str(error)
    kept = all(map(same_bits, before, own(engine)))
    engine.deepspeed.destroy()
    return said, kept


def load() -> None:
    """Imports DeepSpeed before processes are forked."""
    from fastbert.train.engines.zero import load_deepspeed

    load_deepspeed()


def in_a_process(function, directory: Path) -> None:
    """Runs it in one process; a FastbertError of it is raised here."""

    def caught():
        try:
            function()
        except FastbertError as error:
            return error
        return None

    load()
    (error,) = rank_runs.launch(caught, 1, directory)
    if error is not None:
        raise error


QUICK = [("nvlamb", 1), ("apex", 2), ("clamped", 3), ("adamw", 0)]


def quick() -> dict:
    """What runs in CI: three processes, every stage and every variant once; two micro-batches but for stage 3."""
    with distributed.joined(always=True) as world:
        result = {
            (kind, stage): trained(world, kind, 3.0, DeepSpeedOptions(zero=stage), micro=2 - stage // 3, poison=7)
            for kind, stage in QUICK
        }
        result["bug"] = trained(world, "apex", 3.0, DeepSpeedOptions(zero=2), steps=10, bug="shards as tensors")
        result["diverged"] = diverge(world, DeepSpeedOptions(zero=2))
    return result


ALL = [
    (kind, scale, stage, offload, micro)
    for kind in ("nvlamb", "apex", "clamped", "adamw", "adamw-corrected")
    for scale in (3.0, 0.01)
    for stage in (0, 1, 2, 3)
    for offload in ((False, True) if stage else (False,))
    for micro in ((1, 3) if scale == 3.0 else (1,))
]


def every() -> dict:
    with distributed.joined(always=True) as world:
        result = {}
        for kind, scale, stage, offload, micro in ALL:
            options = DeepSpeedOptions(zero=stage, offload=offload)
            result[kind, scale, stage, offload, micro] = trained(world, kind, scale, options, micro=micro, poison=7)
        for stage in (0, 1, 3):
            result["diverged", stage] = diverge(world, DeepSpeedOptions(zero=stage))
    return result


LEFT_OUT = [("fp32", 3, False), ("fp16", 0, False), ("fp16", 2, False), ("bf16", 2, True)]


def leave_out(cases: list[tuple[str, int, bool]]) -> dict:
    """By precision, stage and offload: three trainings of four steps, one as it is, one with another step before the
    third that is left out, and one with a NaN in that step."""
    with distributed.joined(always=True) as world:
        return {case: [with_another(world, *case, another) for another in ("", "left out", "NaN")] for case in cases}


def with_another(world, precision: str, stage: int, offload: bool, another: str) -> dict:
    """What training came to with another step."""
    engine = engine_of(world, "apex", DeepSpeedOptions(zero=stage, offload=offload), precision)
    if precision == "fp16":
        engine.deepspeed.optimizer.loss_scale = 1024.0  # of 2^16, with which DeepSpeed begins, these gradients overflow
    for step, gradients in enumerate(sharded_cases.start_and_gradients(3.0)[1][:4]):
        if step == 2 and another == "NaN":
            take_step(engine, poisoned(gradients), 1, step)
        elif step == 2 and another:
            parts = [shares(7.0 * g, world.size, 1, step)[world.rank][0] for g in gradients]
            engine.backward(lambda parts=parts: engine.forward(parts))
            engine.leave_out()
        take_step(engine, gradients, 2, step)
        if another:
            whole(engine)  # as where a model is written between steps, which leaves nothing behind either
    result = {"weights": whole(engine), "scale": engine.loss_scale, "skipped": engine.skipped}
    engine.deepspeed.destroy()
    return result


def narrow(precision: str, stage: int) -> dict:
    with distributed.joined(always=True) as world:
        return trained(world, "apex", 3.0, DeepSpeedOptions(zero=stage), precision=precision, poison=30)
