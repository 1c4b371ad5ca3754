"""Results as one picture."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..train.plots import new_figure, save_figure
from ..wording import counted

_COLORS = {"fp32": "#8fb8e8", "bf16": "#0b57a4", "int8": "#4b2e83"}


@dataclass(frozen=True)
class _Bar:
    """A bar: its label, its length, the dtype that decides its color (None if there is none), and whether it is
    fastbert's, which is framed where other libraries have bars too."""

    label: str
    value: float
    dtype: str | None
    framed: bool


@dataclass(frozen=True)
class _Panel:
    """Bars under one title; ``digits`` after the decimal point are written beside them."""

    title: str
    digits: int
    bars: list[_Bar]


def plot(document: dict, path: Path) -> Path:
    """Draws a panel per workload, with a bar per library and dtype that has a figure (tokens per second, or
    milliseconds), and a panel each for kernels and data.

    A library that was called in several ways has the bar of its fastest. fastbert's bars are framed. The file is
    written atomically.
    """
    panels = list(_panels(document))
    columns = min(2, len(panels))
    lines = -(-len(panels) // columns)
    tallest = max(len(panel.bars) for panel in panels)
    figure = new_figure(figsize=(6.5 * columns, (0.22 * tallest + 1.1) * lines), layout="constrained")
    from matplotlib.patches import Patch  # after the figure, whose import suppresses messages

    axes = figure.subplots(lines, columns, squeeze=False).flat
    for axis, panel in zip(axes, panels, strict=False):
        _draw(axis, panel)
    for axis in list(axes)[len(panels) :]:
        axis.set_visible(False)
    if any(bar.dtype for panel in panels for bar in panel.bars):
        handles = [Patch(color=color, label=dtype) for dtype, color in _COLORS.items()]
        figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    machine = document["machine"]
    figure.suptitle(
        f"{machine['processor']}, {counted(document['threads'], 'thread')}; {document['date'][:10]}", fontsize="medium"
    )
    return save_figure(figure, path)


def _panels(document: dict) -> Iterator[_Panel]:
    for session in document["sessions"]:
        for workload, about in session["workloads"].items():
            rows = [row for row in session["rows"] if row["workload"] == workload and row["status"] == "ok"]
            key, unit, digits = ("tokens_per_second", "tokens per second", 0)
            if about["latency"]:
                key, unit, digits = ("p50_ms", "milliseconds, less is better", 1)
            rows = _fastest_ways(rows)
            bars = [_Bar(row["variant"], row[key], row["dtype"], row["peer"] == "fastbert") for row in rows]
            yield _Panel(f"{workload} {session['kind']}, {session['model']}: {about['title']}\n{unit}", digits, bars)
    if document.get("kernels"):
        rows = [row for row in document["kernels"] if row["ratio"] is not None]
        bars = [_Bar(f"{row['op']} {row['shape']} {row['dtype']}", row["ratio"], row["dtype"], False) for row in rows]
        yield _Panel("kernels, forward and backward\ntorch's time / fastbert's", 2, bars)
    if document.get("data"):
        rows = document["data"]
        bars = [_Bar(row["what"], row["mb_per_s"], None, row["what"].startswith("fastbert")) for row in rows]
        yield _Panel("data: text to token ids\nmegabytes per second", 2, bars)


def _fastest_ways(rows: list[dict]) -> list[dict]:
    """Of the rows of a workload, of each library and dtype the fastest, in the order of the first."""
    fastest: dict[tuple, dict] = {}
    for row in rows:
        key = row["peer"], row["dtype"], row["preload"]
        if key not in fastest or row["p50_ms"] < fastest[key]["p50_ms"]:
            fastest[key] = row
    return list(fastest.values())


def _draw(axis, panel: _Panel) -> None:
    bars = panel.bars[::-1]
    colors = [_COLORS[bar.dtype or "fp32"] for bar in bars]
    drawn = axis.barh([bar.label for bar in bars], [bar.value for bar in bars], color=colors)
    for rectangle, bar in zip(drawn, bars, strict=True):
        if bar.framed:
            rectangle.set(edgecolor="#d1242f", linewidth=1.5)
    axis.bar_label(drawn, fmt=f"{{:,.{panel.digits}f}}", fontsize="x-small", padding=2)
    axis.margins(x=0.15)
    axis.tick_params(labelsize="x-small")
    axis.spines[["top", "right"]].set_visible(False)
    axis.set_title(panel.title, fontsize="small")
