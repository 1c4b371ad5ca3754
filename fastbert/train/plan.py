"""The cost of a run before it starts: steps, tokens, memory of a rank by part, bytes on the network, time."""

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
from . import flops, graph, phases, scale
from .batch_source import BatchSource, of_phase
from .config import PretrainConfig
from .console import Console
from .distributed import World
from .engines import deepspeed_config
from .loop import PretrainLoop
from .model_and_data import build_model, model_settings
from .phases import RunPhase
from .plan_memory import Memory, activation_bytes, state_bytes
from .pretrain import deepspeed_of

_MEASURED_STEPS, _MEASURED_SECONDS = 3, 5.0


@dataclass(frozen=True)
class Samples:
    """Mean sizes of a phase's samples.

    Args:
        seqlen, labels: tokens and predicted tokens in a sample.
        sequences, tokens: samples and tokens in a full micro-batch.
        known: True if these were measured on data; False if every sample is assumed to have the largest length.
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
        name: the phase's name; empty in a run without phases.
        max_seqlen: the longest sample, in tokens.
        steps: None if the clock bounds the run and the throughput is unknown.
        micro_batches: micro-batches of a rank in a step.
        sequences, tokens: sequences and tokens in a step, over all ranks.
        sent: bytes that each rank sends in a step.
        seconds: None if the throughput is unknown.
        memory: the memory of a rank.
        samples: mean sizes of the phase's samples.
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
    """The plan of a run; `plan_text` prints it.

    Args:
        model: the model's configuration.
        parameters, tensors: numbers of the model's parameters and of their tensors, tied ones counted once.
        ranks: the number of processes.
        zero: DeepSpeed's stage; None without DeepSpeed.
        precision: the run's precision.
        phases: the plans of the phases.
        rates: the throughput of one rank in each phase, in tokens per second; empty if unknown.
        where_from: how the rates are known, in words.
    """

    model: ModelConfig
    parameters: int
    tensors: int
    ranks: int
    zero: int | None
    precision: str
    phases: tuple[PhasePlan, ...]
    rates: tuple[float, ...]
    where_from: str

    @property
    def seconds(self) -> float | None:
        """Seconds of the whole run; None if the throughput is unknown."""
        known = [phase.seconds for phase in self.phases]
        return None if None in known else sum(known)

    @property
    def memory(self) -> Memory:
        """The memory of a rank in the phase that needs most."""
        return max((phase.memory for phase in self.phases), key=lambda memory: memory.total)


def make_plan(
    config: PretrainConfig,
    *,
    data: PretrainingData | None = None,
    ranks: int = 1,
    throughput: float | str | None = None,
) -> Plan:
    """Plans a run. Writes nothing; it only trains, for a few steps, if the throughput is to be measured.

    Args:
        config: the recipe.
        data: the training split; None assumes that every sample has the largest length.
        ranks: the number of processes, each with its own device.
        throughput: tokens per second of one rank in the first phase; the other phases' is derived by FLOPs per token.
            "measure" makes a few steps of each phase on this machine; None leaves the time open.

    Raises:
        InputError: the recipe does not set the length of the run, or ``data`` is needed and None: for epochs, or to
            measure the throughput.
    """
    if throughput == "measure" and data is None:
        raise InputError("throughput can only be measured on data, got no --data")
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
        precision=config.precision,
        phases=tuple(map(planner.plan, found, samples, known)),
        rates=tuple(rates),
        where_from="" if not rates else "measured on this machine" if throughput == "measure" else "as given",
    )


class _Planner:
    """What the plans of all phases of a run share; its methods compute the figures of one phase."""

    def __init__(self, config: PretrainConfig, data: PretrainingData | None, ranks: int, device: torch.device) -> None:
        self.config, self.data, self.ranks, self.device = config, data, ranks, device
        deepspeed = deepspeed_of(config)
        self.zero = None if deepspeed is None else deepspeed_config.stage(deepspeed)
        self.offloaded = () if deepspeed is None else deepspeed_config.offloaded(deepspeed)
        kind, self.settings = model_settings(config, None if data is None else data.shards)
        with torch.device("meta"):
            tensors = list(kind.pretraining_class(self.settings).parameters())
        self.parameters, self.tensors = sum(tensor.numel() for tensor in tensors), len(tensors)

    def total_steps(self) -> int | None:
        """Steps of the run; None if only the clock ends it."""
        config = self.config
        if config.epochs is not None and self.data is None:
            raise InputError("the number of steps in an epoch depends on the data, got no --data")
        # For steps in CUDA graphs, whose batches are padded to one shape, the number is hardly larger.
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
        """Tokens per second of one rank in each phase; empty if unknown."""
        if throughput is None:
            return []
        if throughput == "measure":
            return [_measured_rate(self.config, self.data, phase, self.device) for phase in found]
        each = [flops.sequence_flops(self.settings, round(s.seqlen), s.labels) / s.seqlen for s in samples]
        return [float(throughput) * each[0] / one for one in each]

    def plan(self, phase: RunPhase, samples: Samples, rate: float | None) -> PhasePlan:
        """The plan of a phase in which a rank computes ``rate`` tokens per second; None if unknown."""
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
        """Steps and seconds of a phase; None for what cannot be computed without a rate.

        Args:
            tokens: tokens of a rank in a step.
            rate: tokens per second of a rank; None if unknown.
        """
        if rate is None:
            return phase.steps, None
        each, minutes = tokens / rate, self.config.max_minutes
        clock = None if minutes is None else 60 * minutes * (phase.end - phase.begin)
        steps = max(round(clock / each), 1) if phase.steps is None else phase.steps
        return steps, min(steps * each, clock or steps * each)

    def sent(self, micro_batches: int) -> float:
        """Bytes that each rank sends in a step."""
        # DeepSpeed sends numbers in the precision of its weights.
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
            sequences=phase.token_budget / samples.seqlen,  # of a completely full micro-batch
            seqlen=round(samples.seqlen),
            labels=samples.labels,
            pairs=config.samples.nsp,
            precision=config.precision,
            last_layer=config.last_layer,
            checkpointing=config.activation_checkpointing,
            device=self.device,
        )
        state = state_bytes(self.parameters, zero=self.zero, ranks=self.ranks, precision=config.precision)
        return Memory(*state, activations, micro_batches > 1 or self.zero is not None, self.offloaded)


def _measured_rate(config: PretrainConfig, data: PretrainingData, phase: RunPhase, device: torch.device) -> float:
    """Tokens per second in a few steps with the run's data, model and optimiser; nothing is written."""
    own = of_phase(data, phase)
    once = replace(
        config, steps=10**6, epochs=None, max_minutes=None, phases=(), token_budget=phase.token_budget,
        samples=own.config, num_workers=0, log_every=10**9,
    )  # fmt: skip
    model = build_model(once, data).to(device)
    loop = PretrainLoop(once, model, own, None, Path(), Console(quiet=True))
    # Accumulates as the run would, or the update would take too large a share of the time; a few micro-batches suffice.
    loop.batches.accumulate = min(phase.micro_batches(phases.mean_micro_batch(own, phase.token_budget)), 8)
    model.train()
    # They allocate the optimiser's state and workspaces; steps of fixed shape are captured after some.
    for _ in range(graph.STEPS_BEFORE_REPLAYS if loop.fixed_shape else 1):
        loop.train_step()
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
