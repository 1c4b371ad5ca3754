"""Loss curves as pictures, of pre-training and of fine-tuning."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..files import whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_POINTS = 2000
_INK = "#57606a"
_LINE = {"color": "#8fb8e8", "linewidth": 1.2}
"""The curve of training."""
_MARKED = {"color": "#0b57a4", "linewidth": 2, "marker": "o", "markersize": 3}
"""The curve of evaluations."""


def _every_nth(points: list) -> list:
    """Every n-th point and the last, so that a picture of a long run stays small."""
    stride = -(-len(points) // _MOST_POINTS) or 1
    return points[: len(points) - 1 : stride] + points[-1:] if points else []


def loss_plot(
    rows: Sequence[dict],
    path: str | os.PathLike,
    *,
    baseline: float | None = None,
    words: str = "masked-LM",
) -> Path:
    """Draws the loss of predicted words and, if there is one, the next-sentence accuracy against the step.

    Args:
        rows: rows of metrics.jsonl; those of kinds "train" and "heldout" are drawn.
        path: the file to write, .png or .svg.
        baseline: the unigram entropy of the held-out targets in nats, drawn as a line; None for none.
        words: what is predicted, for labels.

    Returns:
        the path.
    """
    path = Path(path)
    with_pairs = any("nsp_acc" in row for row in rows)
    figure = new_figure(figsize=(9, 3.6) if with_pairs else (6, 3.6), layout="constrained")
    axes = figure.subplots(1, 2 if with_pairs else 1, squeeze=False)[0]
    _curves(axes[0], rows, "mlm_loss", 1.0)
    if baseline is not None:
        axes[0].axhline(baseline, color=_INK, linestyle=":", label="unigram entropy (held out)")
    axes[0].set_ylabel(f"{words} cross-entropy (nats)")
    if with_pairs:
        _curves(axes[1], rows, "nsp_acc", 100.0)
        axes[1].axhline(50, color=_INK, linestyle=":", label="guessing")
        axes[1].set_ylabel("next-sentence accuracy (%)")
    return _saved_with_axes(figure, axes, path)


def score_plot(rows: Sequence[dict], path: str | os.PathLike, *, metric: str, guess: float | None = None) -> Path:
    """Draws a fine-tuning's losses, and a metric on the dev rows, against the step.

    Args:
        rows: rows of metrics.jsonl; those of kinds "train" and "dev" are drawn. Without any of "train", as in a short
            training, the mean losses of the epochs are drawn.
        path: the file to write, .png or .svg.
        metric: the name of the metric.
        guess: its value for predictions made without looking at the texts, drawn as a line; None for none.

    Returns:
        the path.
    """
    figure = new_figure(figsize=(9, 3.6), layout="constrained")
    losses, scores = axes = figure.subplots(1, 2)
    _curve(losses, _points(rows, "train", "loss") or _points(rows, "dev", "train_loss"), "training", _LINE)
    _curve(losses, _points(rows, "dev", "dev_loss"), "dev", _MARKED)
    losses.set_ylabel("loss")
    _curve(scores, _points(rows, "dev", metric), "dev", _MARKED)
    if guess is not None:
        scores.axhline(guess, color=_INK, linestyle=":", label="one answer for all")
    scores.set_ylabel(metric)
    return _saved_with_axes(figure, axes, Path(path))


def _saved_with_axes(figure: Figure, axes: Sequence, path: Path) -> Path:
    """Finishes the axes, whose x is the step, and writes the picture; returns its path."""
    for axis in axes:
        axis.set_xlabel("optimiser steps")
        axis.locator_params(axis="x", integer=True)
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", color="#eaeef2")
        axis.set_axisbelow(True)
        if axis.lines:
            axis.legend(frameon=False, fontsize="small")
    return save_figure(figure, path)


def new_figure(**options: Any) -> Figure:
    """An empty picture, with the options of matplotlib's ``Figure``. Warnings are suppressed during the import, such as
    that the home directory is not writable, where matplotlib has its cache."""
    logger = logging.getLogger("matplotlib")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        from matplotlib.figure import Figure
    finally:
        logger.setLevel(level)
    return Figure(**options)


def save_figure(figure, path: Path) -> Path:
    """Writes a picture completely or not at all; returns its path."""
    with whole(path) as temporary:
        figure.savefig(temporary, dpi=150)
    return path


def _curves(axis, rows: Sequence[dict], name: str, scale: float) -> None:
    _curve(axis, _points(rows, "train", name, scale), "training", _LINE)
    _curve(axis, _points(rows, "heldout", name, scale), "held out", _MARKED)


def _points(rows: Sequence[dict], kind: str, name: str, scale: float = 1.0) -> list[tuple[int, float]]:
    return _every_nth([(row["step"], scale * row[name]) for row in rows if row["kind"] == kind and name in row])


def _curve(axis, points: Sequence[tuple[int, float]], label: str, style: dict[str, Any]) -> None:
    alone = {"marker": "o", "markersize": 3} if len(points) == 1 else {}  # a line of one point is not seen
    if points:
        axis.plot(*zip(*points, strict=True), label=label, **style | alone)
