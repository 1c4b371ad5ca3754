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
from .model_and_data import build_model, model_settings
from .phases import RunPhase
from .plan_memory import Memory, activation_bytes, state_bytes
from .pretrain import deepspeed_of

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
    """What a run comes to; `plan_text` says it.

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
        """Of the whole run; None where no rate is known."""
        known = [phase.seconds for phase in self.phases]
        return None if None in known else sum(known)

    @property
    def memory(self) -> Memory:
        """The memory of the phase that needs most."""
        return max((phase.memory for phase in self.phases), key=lambda memory: memory.total)


def make_plan(
    config: PretrainConfig,
    *,
    data: PretrainingData | None = None,
    ranks: int = 1,
    throughput: float | str | None = None,
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
    planner = _Planner(config, data, ranks, hardware.default_device())
    found = phases.of_run(config, planner.total_steps())
    samples = [planner.samples(phase) for phase in found]
    rates = planner.rates(found, samples, throughput)
    known = rates or [None] * len(found)
    return Plan(
        model=planner.settings,
        parameters=planner.parameters,
        tensors=planner.tensors,
        ranks=ranks,
        zero=planner.zero,
        offload=config.offload,
        precision=config.precision,
        phases=tuple(map(planner.plan, found, samples, known)),
        rates=tuple(rates),
        where_from="" if not rates else "measured on this machine" if throughput == "measure" else "as given",
    )


class _Planner:
    """What the plans of all phases of a run share; its methods are the figures of one."""

    def __init__(self, config: PretrainConfig, data: PretrainingData | None, ranks: int, device: torch.device) -> None:
        self.config, self.data, self.ranks, self.device = config, data, ranks, device
        deepspeed = deepspeed_of(config)
        self.zero = None if deepspeed is None else deepspeed_config.stage(deepspeed)
        kind, self.settings = model_settings(config, None if data is None else data.shards)
        with torch.device("meta"):
            tensors = list(kind.pretraining_class(self.settings).parameters())
        self.parameters, self.tensors = sum(tensor.numel() for tensor in tensors), len(tensors)

    def total_steps(self) -> int | None:
        """Steps of the run; None where the clock alone ends it."""
        config = self.config
        if config.epochs is not None and self.data is None:
            raise InputError("epochs are steps only by the data, got no --data")
        # In batches that are filled up to one shape, as a step in a CUDA graph has them, there are hardly more.
        total = BatchSource(config, self.data, World(size=self.ranks), fixed_shape=False).steps_of_run()
        if total is None and config.max_minutes is None:
            raise InputError("a plan needs the length of the run: steps, epochs or max_minutes, got none")
        return total

    def samples(self, phase: RunPhase) -> Samples:
        data = self.data
        how = phase.samples(self.config.samples if data is None else data.config)
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

    def rates(
        self, found: Sequence[RunPhase], samples: Sequence[Samples], throughput: float | str | None
    ) -> list[float]:
        """Tokens a second of one rank in each phase; empty where nothing is known."""
        if throughput is None:
            return []
        if throughput == "measure":
            return [_measured_rate(self.config, self.data, phase, self.device) for phase in found]
        each = [flops.sequence_flops(self.settings, round(s.seqlen), s.labels) / s.seqlen for s in samples]
        return [float(throughput) * each[0] / one for one in each]

    def plan(self, phase: RunPhase, samples: Samples, rate: float | None) -> PhasePlan:
        """The plan of a phase in which a rank computes ``rate`` tokens a second, if that is known."""
        micro = phase.micro_batches((samples.sequences, samples.tokens), self.ranks)
        steps, seconds = self.length(phase, samples.tokens * micro, rate)
        return PhasePlan(
            name=phase.name,
            max_seqlen=phase.samples(self.config.samples).max_seqlen,
            steps=steps,
            micro_batches=micro,
            sequences=samples.sequences * micro * self.ranks,
            tokens=samples.tokens * micro * self.ranks,
            sent=self.sent(micro),
            seconds=seconds,
            memory=self.memory(phase, samples, micro),
            samples=samples,
        )

    def length(self, phase: RunPhase, tokens: float, rate: float | None) -> tuple[int | None, float | None]:
        """Steps and seconds of a phase in which a rank has so many tokens a step; None for what needs a rate and has
        none."""
        if rate is None:
            return phase.steps, None
        each, minutes = tokens / rate, self.config.max_minutes
        clock = None if minutes is None else 60 * minutes * (phase.end - phase.begin)
        steps = max(round(clock / each), 1) if phase.steps is None else phase.steps
        return steps, min(steps * each, clock or steps * each)

    def sent(self, micro_batches: int) -> float:
        """Bytes that each rank sends in a step."""
        # DeepSpeed sends in the precision of its weights.
        number = 4 if self.zero is None or self.config.precision == "fp32" else 2
        travelling = scale.collectives(
            self.parameters,
            zero=self.zero,
            micro_batches=micro_batches,
            gradient_bytes=number,
            parameter_bytes=number,
            lamb_tensors=self.tensors if self.config.optimizer == "lamb" else 0,
        )
        return scale.sent(travelling, self.ranks)

    def memory(self, phase: RunPhase, samples: Samples, micro_batches: int) -> Memory:
        """The memory of a rank, in bytes."""
        config = self.config
        activations = activation_bytes(
            self.settings,
            sequences=phase.token_budget / samples.seqlen,  # the fullest that there may be
            seqlen=round(samples.seqlen),
            labels=samples.labels,
            pairs=config.samples.nsp,
            precision=config.precision,
            last_layer=config.last_layer,
            checkpointing=config.activation_checkpointing,
            device=self.device,
        )
        state = state_bytes(self.parameters, zero=self.zero, ranks=self.ranks, precision=config.precision)
        return Memory(*state, activations, accumulates=micro_batches > 1 or self.zero is not None)


def _measured_rate(config: PretrainConfig, data: PretrainingData, phase: RunPhase, device: torch.device) -> float:
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
    loop.train_step()  # makes the optimiser's state, and workspaces
    _wait(device)
    began, before, steps = time.perf_counter(), loop.tokens, 0
    while steps < _MEASURED_STEPS or time.perf_counter() - began < _MEASURED_SECONDS:
        loop.train_step()
        _wait(device)
        steps += 1
    return (loop.tokens - before) / (time.perf_counter() - began)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
