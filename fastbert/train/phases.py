"""Phases of a pre-training run, each with its own sequence length, batch and learning rate; without torch.

A run's progress goes from 0 to 1, by steps, by the clock, or by whichever is ahead; a phase is an interval of it. A run
without ``phases:`` is a single phase.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..data.config import SampleConfig
from ..errors import InputError
from ..wording import counted
from .config import PretrainConfig
from .phase_options import MOST_MICRO_BATCHES, Phase

if TYPE_CHECKING:
    from ..data.pretraining import PretrainingData


@dataclass(frozen=True)
class RunPhase:
    """A phase of a run, with what its entry leaves open filled in.

    Args:
        index, name: the phase; the name is empty in a run without phases.
        begin, end: where it begins and ends, as shares of the run.
        steps: None if only the clock bounds the run.
        changes: sample options that differ from the run's, by name.
        token_budget: the most tokens in a micro-batch.
        accumulate: micro-batches in a step; None = computed from batch_sequences or batch_tokens.
        batch_sequences, batch_tokens: the wanted mean size of a step over all ranks; at most one of them is set.
        lr: the peak learning rate.
        own: the entry, if it has its own schedule; None if the run's schedule continues.
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
    own: Phase | None

    def samples(self, config: SampleConfig) -> SampleConfig:
        """The phase's sample options, given those of the run."""
        return dataclasses.replace(config, **self.changes)

    def micro_batches(self, per_micro_batch: tuple[float, float], ranks: int = 1) -> int:
        """The number of micro-batches that a rank accumulates for a step.

        Args:
            per_micro_batch: mean sequences and tokens in a micro-batch of ``token_budget`` tokens.
            ranks: the number of processes.

        Raises:
            InputError: one micro-batch on each rank already exceeds the wanted batch by more than half, or a step would
                have too many micro-batches.
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


def of_run(config: PretrainConfig, total_steps: int | None) -> list[RunPhase]:
    """The phases of a run, with what they leave open filled in from the run's options.

    Args:
        config: the recipe.
        total_steps: the steps of the run; None if only the clock bounds it.
    """
    phases = config.phases or (Phase(share=1.0),)
    found, begin = [], 0.0
    for index, (phase, end) in enumerate(zip(phases, _ends(phases, total_steps), strict=True)):
        samples = {name: getattr(phase, name) for name in ("max_seqlen", "max_predictions")}
        by_batch = phase.batch_sequences is not None or phase.batch_tokens is not None
        found.append(
            RunPhase(
                index=index,
                name=phase.name or (f"phase {index + 1}" if config.phases else ""),
                begin=begin,
                end=end,
                steps=None if total_steps is None else round((end - begin) * total_steps),
                changes={name: value for name, value in samples.items() if value is not None},
                token_budget=phase.token_budget or config.token_budget,
                accumulate=None if by_batch else phase.accumulate or config.accumulate,
                batch_sequences=phase.batch_sequences,
                batch_tokens=phase.batch_tokens,
                lr=phase.lr or config.lr,
                own=phase if phase.schedule is not None else None,
            )
        )
        begin = end
    return found


def _ends(phases: Sequence[Phase], total_steps: int | None) -> list[float]:
    """The share of the run at which each phase ends."""
    sizes = [phase.steps if phase.share is None else phase.share for phase in phases]
    ends = [sum(sizes[: i + 1]) / sum(sizes) for i in range(len(sizes))]
    if total_steps is None:
        return ends
    # Whole steps, at least one per phase. Dividing as `PretrainLoop.progress` does makes boundaries exact.
    rest = range(len(ends) - 1, -1, -1)
    counts = [
        min(max(round(end * total_steps), len(ends) - n), total_steps - n) for end, n in zip(ends, rest, strict=True)
    ]
    return [count / total_steps for count in counts]


def total_steps(config: PretrainConfig) -> int | None:
    """The optimiser steps of a run if its options give them; None if epochs or the clock decide."""
    if config.steps is not None or not config.phases or config.phases[0].steps is None:
        return config.steps
    return sum(phase.steps for phase in config.phases)


def mean_micro_batch(data: PretrainingData, token_budget: int) -> tuple[float, float]:
    """The mean numbers of sequences and of tokens in a micro-batch, over the first epoch."""
    lengths, count = data.lengths(0), max(len(data.batches(0, token_budget)), 1)
    return len(lengths) / count, float(lengths.sum()) / count


def at(phases: Sequence[RunPhase], progress: float) -> RunPhase:
    """The phase that a run is in at this progress."""
    return next((phase for phase in phases if progress < phase.end), phases[-1])


def learning_rate(config: PretrainConfig, phase: RunPhase, progress: float) -> float:
    """The learning rate at this progress of the run."""
    from ..optim import schedules

    own = phase.own
    if own is None:
        return phase.lr * schedules.by_name(config.schedule)(progress, config.warmup)
    inside = min(max((progress - phase.begin) / (phase.end - phase.begin), 0.0), 1.0)
    place = own.span[0] + inside * (own.span[1] - own.span[0])
    if place < own.warmup:
        return phase.lr * (own.warmup_from + (1 - own.warmup_from) * place / own.warmup)
    if own.schedule == "poly":
        return phase.lr * schedules.poly(place, own.warmup, own.power, own.offset)
    return phase.lr * schedules.by_name(own.schedule)(place, own.warmup)


def describe(config: PretrainConfig, phase: RunPhase) -> str:
    """One printed line: length, batch, samples, learning rate."""
    max_seqlen = phase.changes.get("max_seqlen", config.samples.max_seqlen)
    length = f"{100 * (phase.end - phase.begin):g} %" if phase.steps is None else counted(phase.steps, "step")
    batch = f"{phase.accumulate} x {phase.token_budget} tokens"
    if phase.batch_sequences is not None:
        batch = f"{counted(phase.batch_sequences, 'sequence')} in micro-batches of {phase.token_budget} tokens"
    elif phase.batch_tokens is not None:
        batch = f"{phase.batch_tokens:,} tokens in micro-batches of {phase.token_budget}"
    source = phase.own or config
    name = f"{phase.name}: " if phase.name else ""
    return (
        f"{name}{length} of {batch}, samples of at most {max_seqlen}, lr {phase.lr:g}, {source.schedule}"
        f"{'' if phase.own is None else ' of its own'}, warm-up {source.warmup:g}"
    )
