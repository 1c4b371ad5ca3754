"""What a recipe comes to before it runs: steps, tokens, memory of a rank by part, bytes on the wire, time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from .. import hardware
from ..data.pretraining import PretrainingData
from ..errors import InputError
from ..model_config import ModelConfig
from . import flops, phases, scale
from .batch_source import BatchSource, of_phase
from .config import PretrainConfig
from .distributed import World
from .engines import deepspeed_config
from .plan_memory import Memory, activation_bytes, state_bytes
from .pretrain import build_model, deepspeed_of, model_settings

_MEASURED_STEPS, _MEASURED_SECONDS = 3, 5.0


@dataclass(frozen=True)
class Samples:
    """What a phase's samples are like, on average.

    Args:
        seqlen, labels: tokens and predicted tokens of one.
        sequences, tokens: in a full micro-batch.
        known: whether that is measured on data; else every sequence is taken as full.
    """

    seqlen: float
    labels: float
    sequences: float
    tokens: float
    known: bool


@dataclass(frozen=True)
class PhasePlan:
    """One phase.

    Args:
        name: of the phase, empty in a run without phases.
        steps: None where the clock bounds the run and no rate is known.
        micro_batches: of a rank in a step.
        sequences, tokens: of a step over all ranks.
        sent: bytes that each rank sends in a step.
        seconds: None where no rate is known.
        memory: of a rank.
    """

    name: str
    max_seqlen: int
    steps: int | None
    micro_batches: int
    sequences: float
    tokens: float
    sent: float
    seconds: float | None
    memory: Memory
    samples: Samples


@dataclass(frozen=True)
class Plan:
    """What a run comes to; `text` says it.

    Args:
        parameters, tensors: of the model, tied ones once.
        offload: whether the optimiser's state is in the memory of the CPU.
        rates: tokens a second of one rank, by phase; empty where none is known.
        where_from: of the rates, in words.
    """

    model: ModelConfig
    parameters: int
    tensors: int
    ranks: int
    zero: int | None
    offload: bool
    precision: str
    phases: tuple[PhasePlan, ...]
    rates: tuple[float, ...]
    where_from: str

    @property
    def seconds(self) -> float | None:
        known = [phase.seconds for phase in self.phases]
        return None if None in known else sum(known)

    @property
    def memory(self) -> Memory:
        """Of the phase that needs most."""
        return max((phase.memory for phase in self.phases), key=lambda memory: memory.total)


def make_plan(
    config: PretrainConfig,
    *,
    data: PretrainingData | None = None,
    ranks: int = 1,
    throughput: float | str | None = None,
    device: torch.device | None = None,
) -> Plan:
    """Plans a run; nothing is trained and nothing written.

    Args:
        data: the training split; None takes full sequences.
        ranks: processes, each with a device of its own.
        throughput: tokens a second of one rank in the first phase; others follow by their arithmetic. "measure" takes
            a few steps of each phase on this machine; None leaves the time open.

    Raises:
        InputError: no length, or a rate is to be measured without data.
    """
    if throughput == "measure" and data is None:
        raise InputError("a rate can be measured on data only, got no --data")
    deepspeed = deepspeed_of(config)
    zero = None if deepspeed is None else deepspeed_config.stage(deepspeed)
    device = device or hardware.default_device()
    settings, (parameters, tensors) = _model(config, data)
    found = phases.of_run(config, _total_steps(config, data, ranks))
    samples = [_samples(config, data, phase) for phase in found]
    rates = _rates(config, settings, found, samples, data, throughput, device)
    plans = []
    travels = 4 if zero is None or config.precision == "fp32" else 2  # DeepSpeed sends in the precision of its weights
    for phase, sample, rate in zip(found, samples, rates or [None] * len(found), strict=True):
        micro = phase.micro_batches((sample.sequences, sample.tokens), ranks)
        steps, seconds = _length(config, phase, sample.tokens * micro, rate)
        memory = Memory(
            *state_bytes(parameters, zero=zero, ranks=ranks, precision=config.precision),
            _activations(config, settings, phase, sample, device),
            micro > 1 or zero is not None,
        )
        travelling = scale.collectives(
            parameters,
            zero=zero,
            micro_batches=micro,
            gradient_bytes=travels,
            parameter_bytes=travels,
            lamb_tensors=tensors if config.optimizer == "lamb" else 0,
        )
        plans.append(
            PhasePlan(
                name=phase.name,
                max_seqlen=phase.samples(config.samples).max_seqlen,
                steps=steps,
                micro_batches=micro,
                sequences=sample.sequences * micro * ranks,
                tokens=sample.tokens * micro * ranks,
                sent=scale.sent(travelling, ranks),
                seconds=seconds,
                memory=memory,
                samples=sample,
            )
        )
    where = "" if not rates else "measured on this machine" if throughput == "measure" else "as given"
    return Plan(
        model=settings,
        parameters=parameters,
        tensors=tensors,
        ranks=ranks,
        zero=zero,
        offload=config.offload,
        precision=config.precision,
        phases=tuple(plans),
        rates=tuple(rates),
        where_from=where,
    )


def _total_steps(config: PretrainConfig, data: PretrainingData | None, ranks: int) -> int | None:
    """Steps of the run; None where the clock alone ends it."""
    if config.epochs is not None and data is None:
        raise InputError("epochs are steps only by the data, got no --data")
    # In batches that are filled up to one shape, as a step in a CUDA graph has them, there are hardly more.
    total = BatchSource(config, data, World(size=ranks), fixed_shape=False).steps_of_run()
    if total is None and config.max_minutes is None:
        raise InputError("a plan needs the length of the run: steps, epochs or max_minutes, got none")
    return total


def _length(
    config: PretrainConfig, phase: phases.RunPhase, tokens: float, rate: float | None
) -> tuple[int | None, float | None]:
    """Steps and seconds of a phase in which a rank has so many tokens a step; None for what needs a rate and has none.

    Args:
        rate: tokens a second of a rank.
    """
    if rate is None:
        return phase.steps, None
    each = tokens / rate
    clock = None if config.max_minutes is None else 60 * config.max_minutes * (phase.end - phase.begin)
    steps = max(round(clock / each), 1) if phase.steps is None else phase.steps
    return steps, min(steps * each, clock or steps * each)


def _activations(
    config: PretrainConfig, settings: ModelConfig, phase: phases.RunPhase, sample: Samples, device: torch.device
) -> int:
    """Bytes that a rank keeps for the backward pass of one micro-batch."""
    return activation_bytes(
        settings,
        sequences=phase.token_budget / sample.seqlen,  # the fullest that there may be
        seqlen=round(sample.seqlen),
        labels=sample.labels,
        pairs=config.samples.nsp,
        precision=config.precision,
        last_layer=config.last_layer,
        checkpointing=config.activation_checkpointing,
        device=device,
    )


def _model(config: PretrainConfig, data: PretrainingData | None) -> tuple[ModelConfig, tuple[int, int]]:
    """Sizes of the model, and how many parameters in how many tensors."""
    kind, settings = model_settings(config, None if data is None else data.shards)
    with torch.device("meta"):
        tensors = list(kind.model_class(settings).parameters())
    return settings, (sum(tensor.numel() for tensor in tensors), len(tensors))


def _samples(config: PretrainConfig, data: PretrainingData | None, phase: phases.RunPhase) -> Samples:
    how = phase.samples(config.samples if data is None else data.config)
    if data is None:
        sequences, seqlen = float(phase.token_budget // how.max_seqlen), float(how.max_seqlen)
        tokens = sequences * seqlen
    else:
        sequences, tokens = phases.mean_micro_batch(of_phase(data, phase), phase.token_budget)
        seqlen = tokens / sequences
    special = 3 if how.nsp else 2
    labels = seqlen - 1 if how.objective == "causal" else how.mlm_probability * (seqlen - special)
    if how.max_predictions is not None:
        labels = min(labels, how.max_predictions)
    return Samples(seqlen, labels, sequences, tokens, data is not None)


def _rates(
    config: PretrainConfig,
    settings: ModelConfig,
    found: Sequence[phases.RunPhase],
    samples: Sequence[Samples],
    data: PretrainingData | None,
    throughput: float | str | None,
    device: torch.device,
) -> list[float]:
    """Tokens a second of one rank in each phase; empty where nothing is known."""
    if throughput is None:
        return []
    if throughput == "measure":
        return [measured_rate(config, data, phase, device) for phase in found]
    each = [flops.sequence_flops(settings, round(s.seqlen), s.labels) / s.seqlen for s in samples]
    return [float(throughput) * each[0] / one for one in each]


def measured_rate(config: PretrainConfig, data: PretrainingData, phase: phases.RunPhase, device: torch.device) -> float:
    """Tokens a second of a few real steps; the run's own data, model and optimiser, nothing written."""
    from .console import Console
    from .loop import PretrainLoop

    own = of_phase(data, phase)
    once = replace(
        config, steps=10**6, epochs=None, max_minutes=None, phases=(), token_budget=phase.token_budget,
        samples=own.config, num_workers=0, log_every=10**9,
    )  # fmt: skip
    model = build_model(once, data).to(device)
    loop = PretrainLoop(once, model, own, None, Path(), Console(quiet=True))
    # A step accumulates as the run's would, or updates would weigh too much; a few micro-batches are enough for that.
    loop.batches.accumulate = min(phase.micro_batches(phases.mean_micro_batch(own, phase.token_budget)), 8)
    model.train()
    loop._train_step()  # makes the optimiser's state, and workspaces
    _wait(device)
    began, before, steps = time.perf_counter(), loop.tokens, 0
    while steps < _MEASURED_STEPS or time.perf_counter() - began < _MEASURED_SECONDS:
        loop._train_step()
        _wait(device)
        steps += 1
    return (loop.tokens - before) / (time.perf_counter() - began)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def text(plan: Plan) -> str:
    """The plan for people."""
    settings, memory = plan.model, plan.memory
    under = "" if plan.zero is None else f", ZeRO {plan.zero}"
    lines = [
        f"model     {settings.num_hidden_layers} layers x {settings.hidden_size}, vocabulary {settings.vocab_size}: "
        f"{plan.parameters:,} parameters in {plan.tensors} tensors",
        f"ranks     {plan.ranks}{under}, {plan.precision}",
    ]
    for phase in plan.phases:
        name = f"{phase.name}: " if phase.name else ""
        length = "as many steps as the clock allows" if phase.steps is None else f"{phase.steps:,} steps"
        total = "" if phase.steps is None else f", {_count(phase.steps * phase.tokens)} tokens in all"
        each = f"{phase.samples.seqlen:.0f} tokens on average" if phase.samples.known else "all taken as full"
        lines += [
            f"phase     {name}{length} of {phase.sequences:,.0f} sequences, {phase.tokens:,.0f} tokens{total}",
            f"          samples of at most {phase.max_seqlen} ({each}), {phase.micro_batches} x "
            f"{phase.samples.tokens:,.0f} tokens on each rank",
        ]
        if plan.ranks > 1:
            lines.append(f"          each rank sends {_bytes(phase.sent)} a step")
        if phase.seconds is not None:
            lines.append(f"          {_duration(phase.seconds)}")
    where = " in the memory of the CPU" if plan.offload else ""
    here = memory.total - memory.optimizer * plan.offload
    lines += [
        f"memory    of a rank: parameters {_bytes(memory.parameters)}, gradients {_bytes(memory.gradients)}, "
        f"optimiser {_bytes(memory.optimizer)}{where}, activations {_bytes(memory.activations)}",
        f"          {_bytes(here)} at the peak, without what kernels and libraries take for themselves",
    ]
    if plan.seconds is None:
        lines.append("time      not known: --plan-throughput takes tokens a second of one rank, or measure")
    else:
        rates = ", ".join(f"{rate:,.0f}" for rate in plan.rates)
        lines.append(
            f"time      {_duration(plan.seconds)} at {rates} tokens a second of a rank, {plan.where_from}; on top come "
            "evaluations, checkpoints and waiting for other ranks"
        )
    return "\n".join(lines)


def _count(value: float) -> str:
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6)):
        if value >= size:
            return f"{value / size:,.1f} {unit}"
    return f"{value:,.0f}"


def _bytes(value: float) -> str:
    return f"{value / 2**30:,.2f} GiB" if value >= 2**30 else f"{value / 2**20:,.1f} MiB"


def _duration(seconds: float) -> str:
    if seconds >= 2 * 86400:
        return f"{seconds / 86400:,.1f} days"
    if seconds >= 2 * 3600:
        return f"{seconds / 3600:.1f} hours"
    return f"{seconds / 60:.1f} minutes" if seconds >= 120 else f"{seconds:.1f} seconds"
