"""What each process of train/test_scale.py runs: steps of the engines, with every byte counted."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn

from fastbert.optim import AdamW, Lamb, param_groups
from fastbert.train import distributed, scale
from fastbert.train.engines import deepspeed_config
from fastbert.train.engines.ddp import DDPEngine
from fastbert.train.engines.deepspeed_config import DeepSpeedOptions

WIDTH, LAYERS, MICRO = 96, 6, 2
# name in torch.distributed -> which argument is the whole tensor that travels
_COLLECTIVES = {
    "all_reduce": 0,
    "reduce": 0,
    "broadcast": 0,
    "reduce_scatter_tensor": 1,
    "_reduce_scatter_base": 1,
    "all_gather_into_tensor": 0,
    "_all_gather_base": 0,
    "all_gather": 0,
    "reduce_scatter": 1,
}


def model() -> nn.Module:
    """Square matrices and vectors: weights that decay and biases that do not."""
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))


@contextlib.contextmanager
def counted() -> Iterator[Counter]:
    """Bytes of the tensors given to collectives, by collective."""
    counts: Counter = Counter()
    kept = {name: getattr(dist, name) for name in _COLLECTIVES if hasattr(dist, name)}

    def wrap(name: str, call):
        def counting(*arguments, **options):
            named = ("tensor", "tensor", "tensor", "input", "input", "output_tensor", "output_tensor", "tensor_list")
            position = _COLLECTIVES[name]
            whole = arguments[position] if len(arguments) > position else None
            if whole is None:
                whole = next(options[key] for key in named if key in options)
            tensors = whole if isinstance(whole, list | tuple) else [whole]
            counts[name.strip("_")] += sum(t.numel() * t.element_size() for t in tensors)
            return call(*arguments, **options)

        return counting

    for name, call in kept.items():
        setattr(dist, name, wrap(name, call))
    try:
        yield counts
    finally:
        for name, call in kept.items():
            setattr(dist, name, call)


def written() -> int:
    """Bytes that this process has handed to the kernel, into sockets too."""
    with open("/proc/self/io", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("wchar"))


def engine_of(world, stage: int | None, kind: str, how: str):
    net = model()
    groups = param_groups(net, 0.01)
    optimizer = Lamb(groups, lr=1e-3, variant="apex") if kind == "lamb" else AdamW(groups, lr=1e-3)
    if stage is None:
        return DDPEngine(net, optimizer, world)
    from fastbert.train.engines.zero import DeepSpeedEngine

    configuration = deepspeed_config.configuration(DeepSpeedOptions(zero=stage), "fp32", 1.0)
    if "all" in how:
        configuration["zero_optimization"]["stage3_param_persistence_threshold"] = 0
    if "twice" in how:
        configuration["zero_optimization"] |= {"stage3_max_reuse_distance": 0, "stage3_max_live_parameters": 0}
    return DeepSpeedEngine(net, optimizer, world, configuration)


def step(engine) -> None:
    for micro in range(MICRO):
        x = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(micro))
        engine.backward(lambda x=x: engine.forward(x).square().mean(), last=micro == MICRO - 1)
    engine.step(1e-3)


def measure(world, stage: int | None, kind: str, how: str) -> dict:
    """The third step's bytes: the first two make buffers and, at stage 3, learn the order of parameters."""
    with counted() as counts:
        engine = engine_of(world, stage, kind, how)
        step(engine)
        step(engine)
        counts.clear()
        before = written()
        step(engine)
        dist.barrier()
        sent = written() - before
        found = {"payload": dict(counts), "sent": sent}
    if stage is not None:
        engine.deepspeed.destroy()
    return found


def main(cases: list[tuple[int | None, str, str]]) -> dict:
    with distributed.joined(always=True) as world:
        return {case: measure(world, *case) for case in cases}


def states() -> dict:
    """By stage and precision: numbers in the model, bytes of weights, bytes of masters and moments on this rank."""
    from fastbert.train.engines.zero import DeepSpeedEngine

    found = {}
    with distributed.joined(always=True) as world:
        for zero, precision in ((0, "bf16"), (1, "fp32"), (1, "bf16"), (2, "fp32"), (2, "bf16")):
            net = model()
            numbers = sum(p.numel() for p in net.parameters())
            configuration = deepspeed_config.configuration(DeepSpeedOptions(zero=zero), precision, 1.0)
            optimizer = AdamW(param_groups(net, 0.01), lr=1e-3)
            engine = DeepSpeedEngine(net, optimizer, world, configuration, precision=precision)
            x = torch.randn(4, WIDTH, dtype=torch.bfloat16 if precision == "bf16" else torch.float32)
            engine.backward(lambda engine=engine, x=x: engine.forward(x).float().square().mean())
            engine.step(1e-3)
            updated = [p for group in engine.optimizer.param_groups for p in group["params"]]
            moments = [t for p in updated for t in engine.optimizer.state[p].values() if isinstance(t, torch.Tensor)]
            weights = {p.data.untyped_storage().data_ptr(): p.numel() * p.element_size() for p in net.parameters()}
            others = {
                t.untyped_storage().data_ptr(): t.numel() * 4
                for t in (*updated, *moments)
                if t.dtype == torch.float32 and t.untyped_storage().data_ptr() not in weights
            }
            bytes_of_weights = sum(p.numel() * p.element_size() for p in net.parameters())
            found[zero, precision] = numbers, bytes_of_weights, sum(others.values())
            engine.deepspeed.destroy()
    return found


def page_tables(large) -> list[str]:
    """The tables of docs/scale.md: BERT-large in NVIDIA's two phases on H200 at half of the peak."""
    parameters = sum(p.numel() for p in large.parameters())
    return [
        scale.table([scale.step(parameters, n, batch, micro, rate, **what) for n in (1, 8, 64, 1024)])
        for batch, micro, rate, what in (
            (65536, 512, 2055, {}),
            (32768, 128, 485, {}),
            (65536, 512, 2055, {"zero": 1, "parameter_bytes": 2, "gradient_bytes": 2}),
            (65536, 512, 2055, {"zero": 3, "parameter_bytes": 2, "gradient_bytes": 2}),
        )
    ]
