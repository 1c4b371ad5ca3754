"""Figures of a study: means and standard deviations over seeds, and whether rows are in the paper's order."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

CLEAR_MARGIN = 0.3
"""The nats below the unigram entropy from which a pre-training counts as begun: about the gain from the most frequent
pairs of words, which a model learns first."""
CLEAR = 2.0
"""The number of standard errors from which a difference counts as one."""
_NOISE = 1e-9
"""Means that differ by less are equal, except for rounding of their sums."""


@dataclass(frozen=True)
class Figure:
    """A cell of the table over all seeds.

    Args:
        values: one per seed.
        paper: the paper's figure, or None.
        guess: the figure of one constant answer; None if the task has no such baseline.
    """

    values: tuple[float, ...]
    paper: float | None = None
    guess: float | None = None

    @property
    def mean(self) -> float:
        """The mean over the seeds."""
        return statistics.fmean(self.values)

    @property
    def sd(self) -> float | None:
        """Standard deviation over the seeds; None for one seed."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    @property
    def variance_of_mean(self) -> float | None:
        """The square of the standard error of `mean`; None for one seed."""
        return None if self.sd is None else self.sd**2 / len(self.values)


@dataclass(frozen=True)
class Pair:
    """Two rows in one column.

    Args:
        first, second: the rows; either may have the paper's better figure.
        ours, paper: the first's figure minus the second's.
        error: the standard error of ours, from both standard deviations; None for one seed.
    """

    column: str
    first: str
    second: str
    ours: float
    paper: float
    error: float | None

    @property
    def errors(self) -> float | None:
        """Our difference in units of its standard error; None for one seed."""
        if self.error is None:
            return None
        return self.ours / self.error if self.error else math.copysign(math.inf, self.ours) if self.ours else 0.0

    @property
    def agrees(self) -> bool:
        """Whether our difference has the paper's sign."""
        return self.ours * self.paper > 0


@dataclass(frozen=True)
class ModelUse:
    """How a row's model is used for a column.

    Args:
        pretrained: a name of its pre-training.
        frozen: whether the pre-trained model is not changed, and a new model learns from its features.
    """

    pretrained: str
    frozen: bool

    def __str__(self) -> str:
        return "is frozen below a new model" if self.frozen else "is fine-tuned"


def pairs(column: str, figures: dict[str, Figure]) -> list[Pair]:
    """All pairs of rows whose order in a column is known from the paper."""
    known = [row for row, figure in figures.items() if figure.paper is not None]
    found = []
    for number, first in enumerate(known):
        for second in known[number + 1 :]:
            paper = figures[first].paper - figures[second].paper
            if paper:
                found.append(_pair(column, figures, first, second, paper))
    return found


def _pair(column: str, figures: dict[str, Figure], first: str, second: str, paper: float) -> Pair:
    a, b = figures[first], figures[second]
    variances = (a.variance_of_mean, b.variance_of_mean)
    error = None if None in variances else math.sqrt(sum(variances))
    ours = a.mean - b.mean
    return Pair(column, first, second, ours if abs(ours) > _NOISE else 0.0, paper, error)


def reason(
    pair: Pair, figures: dict[str, Figure], margins: dict[str, float], uses: Mapping[str, ModelUse] | None = None
) -> str:
    """The likely reason why two rows are not in the paper's order: the first of several checks that explains it.

    Args:
        pair: the two rows.
        figures: those of the column, by row.
        margins: by row, the smallest number of nats that a seed's pre-training ended below the unigram entropy; rows
            that do not predict words are missing.
        uses: by row; None if the models of all rows are used in the same way.
    """
    both = (pair.first, pair.second)
    if all(_only_guesses(figures[row]) for row in both):
        guess = figures[pair.first].guess
        return (
            f"neither has learned the task: one answer for all rows has {guess:.1f}, and both are within two standard "
            "errors of it or below"
        )
    hardly = [row for row in both if margins.get(row, math.inf) < CLEAR_MARGIN]
    if hardly:
        said = " and ".join(f"{row} {_beside_entropy(margins[row])}" for row in hardly)
        return f"pre-training has hardly begun: {said}, where {CLEAR_MARGIN:g} under it would count as begun"
    if pair.errors is None:
        return "one seed has no spread to hold the difference to: add seeds"
    if abs(pair.errors) < CLEAR:
        return (
            f"the seeds' spread covers it: {shown(abs(pair.errors))} standard errors are under {CLEAR:g}; the paper's "
            f"own difference is {abs(pair.paper):.1f}, the standard error here {pair.error:.1f}"
        )
    used = _used_apart(pair, figures, uses or {})
    if used is not None:
        return used
    begun = [margins[row] for row in both if row in margins]
    pretrained = f"pre-training came {min(begun):.2f} nats or more under the unigram entropy, " if begun else ""
    learned = "the task is learned" if figures[pair.first].guess is not None else "no figure says what a guess has"
    return (
        f"none of the checks explains it: {pretrained}{learned}, and the seeds' spread does not cover it; it is a "
        "result of this scale"
    )


def _used_apart(pair: Pair, figures: dict[str, Figure], uses: Mapping[str, ModelUse]) -> str | None:
    """A sentence if one of two models is fine-tuned and the other is frozen, with the figure of a row that has both
    used in the same way. None if they are used in the same way, or if they are the same model, so that this is what the
    study compares."""
    first, second = uses.get(pair.first), uses.get(pair.second)
    if first is None or second is None or first.frozen == second.frozen or first.pretrained == second.pretrained:
        return None
    said = f"they are used in different ways: {pair.first} {first}, {pair.second} {second}"
    as_second = _row_of(ModelUse(first.pretrained, second.frozen), uses)
    as_first = _row_of(ModelUse(second.pretrained, first.frozen), uses)
    if as_second is None and as_first is None:
        return f"{said}; no row shows them used alike"
    both = (pair.first, as_first) if as_second is None else (as_second, pair.second)
    alike = _pair(pair.column, figures, *both, pair.paper)
    said += f"; used alike, {both[0]} - {both[1]} is {alike.ours:+.2f}, {shown(alike.errors, '+')} standard errors"
    if alike.agrees and abs(alike.errors) >= CLEAR:
        return f"{said}, which is the paper's order"
    if abs(alike.errors) < CLEAR:
        return f"{said}, which the seeds' spread covers"
    return f"{said}, so that is not all of it: it is a result of this scale"


def _row_of(use: ModelUse, uses: Mapping[str, ModelUse]) -> str | None:
    return next((row for row, own in uses.items() if own == use), None)


def _beside_entropy(margin: float) -> str:
    where = "under" if margin >= 0 else "over"
    return f"ended {abs(margin):.2f} nats {where} the unigram entropy"


def shown(errors: float, sign: str = "") -> str:
    """A number of standard errors with one decimal; 1.98 is not shown as "2.0", which would count as a difference."""
    if abs(errors) < CLEAR <= round(abs(errors), 1):
        errors = math.copysign(CLEAR - 0.1, errors)
    return f"{errors:{sign}.1f}"


def _only_guesses(figure: Figure) -> bool:
    if figure.guess is None:
        return False
    return figure.mean <= figure.guess + CLEAR * math.sqrt(figure.variance_of_mean or 0.0) + _NOISE


def summary(found: Sequence[Pair]) -> str:
    """A sentence that tells how many pairs are in the paper's order."""
    if not found:
        return "The paper gives no order of these rows to compare with."
    same = [pair for pair in found if pair.agrees]
    clear = [pair for pair in found if pair.errors is not None and abs(pair.errors) >= CLEAR]
    text = f"{len(same)} of {len(found)} pairs of rows are in the paper's order"
    if found[0].errors is None:
        return text + "; with one seed there is no standard error to say which differences are clear."
    right = sum(pair.agrees for pair in clear)
    if not clear:
        return text + f"; no difference is {CLEAR:g} standard errors or more."
    are = "difference is" if len(clear) == 1 else "differences are"
    return text + (
        f"; {len(clear)} {are} {CLEAR:g} standard errors or more, {right} of them in the paper's order and "
        f"{len(clear) - right} against it."
    )
