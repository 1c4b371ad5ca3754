"""Loss curves as pictures."""

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
_INK, _TRAIN, _HELDOUT = "#57606a", "#8fb8e8", "#0b57a4"


def _thin(points: list) -> list:
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
    for axis in axes:
        axis.set_xlabel("optimiser steps")
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
    for kind, label, style in (
        ("train", "training", {"color": _TRAIN, "linewidth": 1.2}),
        ("heldout", "held out", {"color": _HELDOUT, "linewidth": 2, "marker": "o", "markersize": 3}),
    ):
        points = _thin([(row["step"], scale * row[name]) for row in rows if row["kind"] == kind and name in row])
        if points:
            axis.plot(*zip(*points, strict=True), label=label, **style)
