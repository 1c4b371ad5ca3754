"""The options of one entry of ``phases:`` in a recipe, and whether several fit together; without torch."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from ..errors import InputError
from ..options import check_above_zero, check_at_least_one, check_choices

MOST_MICRO_BATCHES = 1_000_000
"""The most micro-batches in a step on one rank. All are in memory before the first is computed, and a signal is only
heeded between steps."""

MOST = 1e12
"""The largest rate, and the largest length in epochs or minutes: computing with more overflows float32."""


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One entry of ``phases:``. Options that it does not set are the run's."""

    name: str = ""
    """The phase's name in printed lines and log rows."""
    steps: int | None = None
    """Optimiser steps; all phases have steps, or all have a share. With --steps they are scaled to that total."""
    share: float | None = None
    """Share of the run, whose length --steps or --max-minutes sets."""
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
    """A schedule of the phase's own, with a new warm-up; without it, the run's schedule continues through the phase."""
    warmup: float = 0.0
    """Share of its own schedule in which the learning rate rises."""
    warmup_from: float = 0.0
    """The share of the peak at which the warm-up begins."""
    power: float = 0.5
    """The exponent of schedule poly."""
    offset: bool = False
    """Let poly fall from the peak at the end of the warm-up; without it, poly falls from the start of the schedule, so
    that the rate jumps at the end of the warm-up, as in NVIDIA's recipe."""
    span: tuple[float, float] = (0.0, 1.0)
    """The part of its own schedule that the phase covers."""

    def __post_init__(self) -> None:
        counts = ("steps", "max_seqlen", "max_predictions", "token_budget", "accumulate")
        check_at_least_one(self, *counts, "batch_sequences", "batch_tokens", whose=" of a phase")
        if self.accumulate is not None and self.accumulate > MOST_MICRO_BATCHES:
            raise InputError(f"accumulate of a phase must be at most {MOST_MICRO_BATCHES}, got {self.accumulate}")
        check_above_zero(self, "lr", "share", "power", most=MOST, whose=" of a phase")
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

    def said(self) -> dict[str, Any]:
        """The options that differ from their defaults."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if getattr(self, f.name) != f.default}


def check_phases(phases: tuple[Phase, ...], steps: int | None, epochs: float | None, max_minutes: float | None) -> None:
    """Raises InputError if the phases and the length of the run do not fit together."""
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
