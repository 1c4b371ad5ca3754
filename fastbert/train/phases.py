"""Phases of a pre-training run: stretches with their own sequence length, batch and learning rate; without torch.

A run's progress goes from 0 to 1, by steps, by the clock, or by whichever is ahead; a phase is an interval of it. A run
whose recipe names no phase is one phase.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ..data.config import PretrainingConfig
from ..errors import InputError
from ..options import check_choices

if TYPE_CHECKING:
    from ..data.pretraining import PretrainingData
    from .config import PretrainConfig

MOST_MICRO_BATCHES = 1_000_000
"""Of a step, on one rank. They are all in memory before the first is computed, and no signal ends a step half-way."""

MOST = 1e12
"""Of a rate, and of a length in epochs or minutes: what comes of more is no number any longer, in float32."""


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One entry of ``phases:``. What it does not say is the run's."""

    name: str = ""
    """What lines and rows call it."""
    steps: int | None = None
    """Optimiser steps; all phases have steps, or all have a share. With --steps they are scaled to that many in all."""
    share: float | None = None
    """Share of the run, which --steps or --max-minutes bound."""
    max_seqlen: int | None = None
    """Longest sample in tokens."""
    max_predictions: int | None = None
    """The most predicted tokens in a sample."""
    token_budget: int | None = None
    """The most tokens in a micro-batch."""
    accumulate: int | None = None
    """Micro-batches in a step, on each rank."""
    batch_sequences: int | None = None
    """Sequences in a step over all ranks, on average: accumulate follows from it."""
    batch_tokens: int | None = None
    """Tokens in a step over all ranks, on average: accumulate follows from it."""
    lr: float | None = None
    """Peak learning rate."""
    schedule: Literal["linear", "poly", "constant"] | None = None
    """A schedule of the phase's own, from a new warm-up to its end; without, the run's goes on through the phase."""
    warmup: float = 0.0
    """Share of its own schedule in which the learning rate rises."""
    warmup_from: float = 0.0
    """The share of the peak that the warm-up rises from."""
    power: float = 0.5
    """Of poly."""
    offset: bool = False
    """Let poly fall from the peak at the end of the warm-up; without, it falls from the start of its schedule, with a
    jump where the warm-up ends, as NVIDIA's recipe does."""
    span: tuple[float, float] = (0.0, 1.0)
    """The part of its own schedule that the phase goes through."""

    def __post_init__(self) -> None:
        for name in ("steps", "max_seqlen", "max_predictions", "token_budget", "accumulate", "batch_sequences"):
            _at_least_one(name, getattr(self, name))
        _at_least_one("batch_tokens", self.batch_tokens)
        if self.accumulate is not None and self.accumulate > MOST_MICRO_BATCHES:
            raise InputError(f"accumulate of a phase must be at most {MOST_MICRO_BATCHES}, got {self.accumulate}")
        for name in ("lr", "share", "power"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= MOST:
                raise InputError(f"{name} of a phase must be above 0 and at most {MOST:g}, got {value}")
        if (self.steps is None) == (self.share is None):
            raise InputError(f"a phase needs steps or a share, and not both, got {self.steps} and {self.share}")
        sizes = [name for name in ("accumulate", "batch_sequences", "batch_tokens") if getattr(self, name) is not None]
        if len(sizes) > 1:
            raise InputError(f"a phase's batch is set by one option, got {' and '.join(sizes)}")
        if self.schedule is None and (self.warmup or self.warmup_from or self.offset or self.span != (0.0, 1.0)):
            raise InputError("warmup, warmup_from, offset and span of a phase belong to its own schedule, got none")
        check_choices(self)
        if not (0 <= self.warmup <= 1 and 0 <= self.warmup_from <= 1):
            raise InputError(
                f"warmup and warmup_from of a phase are shares, between 0 and 1, got {self.warmup}, {self.warmup_from}"
            )
        if len(self.span) != 2 or not 0 <= self.span[0] < self.span[1] <= 1:
            raise InputError(f"span must be two rising shares between 0 and 1, got {self.span}")


def _at_least_one(name: str, value: int | None) -> None:
    if value is not None and value < 1:
        raise InputError(f"{name} of a phase must be at least 1, got {value}")


def check(phases: tuple[Phase, ...], steps: int | None, epochs: float | None, max_minutes: float | None) -> None:
    """Raises InputError where phases and the length of the run do not fit together."""
    if not phases:
        return
    if epochs is not None:
        raise InputError("a run with phases is measured by steps or max_minutes, got epochs")
    shares = [phase.share for phase in phases if phase.share is not None]
    if shares and len(shares) < len(phases):
        raise InputError("either every phase has steps or every phase has a share, got some of each")
    if shares and abs(sum(shares) - 1) > 1e-6:
        raise InputError(f"the shares of the phases must add up to 1, got {sum(shares):g}")
    if shares and steps is None and max_minutes is None:
        raise InputError("phases with shares need the length of the run, steps or max_minutes, got neither")
    if steps is not None and steps < len(phases):
        raise InputError(f"steps must be at least the number of phases, {len(phases)}, got {steps}")


@dataclass(frozen=True)
class Stretch:
    """A phase with everything filled in.

    Args:
        index, name: which phase; the name is empty in a run without phases.
        begin, end: shares of the run.
        steps: None where the clock alone bounds the run.
        changes: of how samples are made, by option.
        token_budget: the most tokens in a micro-batch.
        accumulate: micro-batches in a step; None = to be found from the batch wanted.
        batch_sequences, batch_tokens: of a step over all ranks, where one is wanted.
        lr: the peak.
        phase: its own schedule's shape, where ``phase.schedule`` is set.
    """

    index: int
    name: str
    begin: float
    end: float
    steps: int | None
    changes: dict
    token_budget: int
    accumulate: int | None
    batch_sequences: int | None
    batch_tokens: int | None
    lr: float
    phase: Phase | None

    def samples(self, config: PretrainingConfig) -> PretrainingConfig:
        """How its samples are made, where the run's are made as ``config`` says."""
        return dataclasses.replace(config, **self.changes)

    def micro_batches(self, per_micro_batch: tuple[float, float], ranks: int = 1) -> int:
        """How many a rank accumulates for a step.

        Args:
            per_micro_batch: mean sequences and tokens in a micro-batch of ``token_budget`` tokens.

        Raises:
            InputError: one micro-batch on each rank is already over one and a half times the batch wanted, or they
                would be too many for a step.
        """
        if self.accumulate is not None:
            return self.accumulate
        wanted, each, unit = self.batch_sequences, per_micro_batch[0], "sequences"
        if wanted is None:
            wanted, each, unit = self.batch_tokens, per_micro_batch[1], "tokens"
        count = max(round(wanted / (each * ranks)), 1)
        if count > MOST_MICRO_BATCHES:
            raise InputError(
                f"a step of {wanted:,} {unit} must be of at most {MOST_MICRO_BATCHES:,} micro-batches on a rank, got "
                f"{count:,}"
            )
        if count * each * ranks > 1.5 * wanted:
            budget = max(int(self.token_budget * wanted / (each * ranks)), 1)
            raise InputError(
                f"a step of {wanted:,} {unit} needs a token_budget of at most {budget:,} on {ranks} rank(s), "
                f"got {self.token_budget:,}, which holds {each:,.0f} {unit}"
            )
        return count


def stretches(config: PretrainConfig, total_steps: int | None) -> list[Stretch]:
    """The phases of a run, with what they leave open filled in from the run's options.

    Args:
        total_steps: None where the clock alone bounds the run.
    """
    phases = config.phases
    if not phases:
        batch = config.token_budget, config.accumulate, None, None
        return [Stretch(0, "", 0.0, 1.0, total_steps, {}, *batch, config.lr, None)]
    sizes = [phase.steps if phase.share is None else phase.share for phase in phases]
    ends = [sum(sizes[: i + 1]) / sum(sizes) for i in range(len(sizes))]
    if total_steps is not None:
        # Whole steps, at least one for each, divided as progress is, so that a border is met exactly.
        rest = range(len(ends) - 1, -1, -1)
        counts = [
            min(max(round(end * total_steps), len(ends) - n), total_steps - n)
            for end, n in zip(ends, rest, strict=True)
        ]
        ends = [count / total_steps for count in counts]
    found, begin = [], 0.0
    for index, (phase, end) in enumerate(zip(phases, ends, strict=True)):
        samples = {name: getattr(phase, name) for name in ("max_seqlen", "max_predictions")}
        wanted = phase.batch_sequences, phase.batch_tokens
        found.append(
            Stretch(
                index,
                phase.name or f"phase {index + 1}",
                begin,
                end,
                None if total_steps is None else round((end - begin) * total_steps),
                {name: value for name, value in samples.items() if value is not None},
                phase.token_budget or config.token_budget,
                (phase.accumulate or config.accumulate) if wanted == (None, None) else None,
                *wanted,
                phase.lr or config.lr,
                phase if phase.schedule is not None else None,
            )
        )
        begin = end
    return found


def total_steps(config: PretrainConfig) -> int | None:
    """The optimiser steps that options alone decide: not by epochs, and not by the clock."""
    if config.steps is not None or not config.phases or config.phases[0].steps is None:
        return config.steps
    return sum(phase.steps for phase in config.phases)


def mean_micro_batch(data: PretrainingData, token_budget: int) -> tuple[float, float]:
    """Sequences and tokens in a micro-batch, on average over the first epoch."""
    lengths, count = data.lengths(0), max(len(data.batches(0, token_budget)), 1)
    return len(lengths) / count, float(lengths.sum()) / count


def at(found: list[Stretch], progress: float) -> Stretch:
    """The phase that a run is in."""
    return next((stretch for stretch in found if progress < stretch.end), found[-1])


def learning_rate(config: PretrainConfig, stretch: Stretch, progress: float) -> float:
    """The rate at this progress of the run."""
    from ..optim import schedules

    phase = stretch.phase
    if phase is None:
        return stretch.lr * schedules.by_name(config.schedule)(progress, config.warmup)
    inside = min(max((progress - stretch.begin) / (stretch.end - stretch.begin), 0.0), 1.0)
    place = phase.span[0] + inside * (phase.span[1] - phase.span[0])
    if place < phase.warmup:
        return stretch.lr * (phase.warmup_from + (1 - phase.warmup_from) * place / phase.warmup)
    if phase.schedule == "poly":
        return stretch.lr * schedules.poly(place, phase.warmup, phase.power, phase.offset)
    return stretch.lr * schedules.by_name(phase.schedule)(place, phase.warmup)


def describe(config: PretrainConfig, stretch: Stretch) -> str:
    """One line for people: length, samples, batch, rate."""
    max_seqlen = stretch.changes.get("max_seqlen", config.samples.max_seqlen)
    length = f"{100 * (stretch.end - stretch.begin):g} %" if stretch.steps is None else f"{stretch.steps:,} steps"
    batch = f"{stretch.accumulate} x {stretch.token_budget} tokens"
    if stretch.batch_sequences is not None:
        batch = f"{stretch.batch_sequences:,} sequences in micro-batches of {stretch.token_budget} tokens"
    elif stretch.batch_tokens is not None:
        batch = f"{stretch.batch_tokens:,} tokens in micro-batches of {stretch.token_budget}"
    phase = stretch.phase
    schedule, warmup = (config.schedule, config.warmup) if phase is None else (phase.schedule, phase.warmup)
    name = f"{stretch.name}: " if stretch.name else ""
    return (
        f"{name}{length} of {batch}, samples of at most {max_seqlen}, lr {stretch.lr:g}, {schedule}"
        f"{'' if phase is None else ' of its own'}, warm-up {warmup:g}"
    )
