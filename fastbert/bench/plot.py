"""Results as one picture."""

from __future__ import annotations

from pathlib import Path

from ..train.plots import new_figure, save_figure
from ..wording import counted

_COLORS = {"fp32": "#8fb8e8", "bf16": "#0b57a4", "int8": "#4b2e83"}


def plot(document: dict, path: Path) -> Path:
    """Draws a panel per workload, with a bar per variant that has a figure: tokens per second, or milliseconds.

    fastbert's bars are framed. The file is written atomically.
    """
    panels = [(session, workload) for session in document["sessions"] for workload in session["workloads"]]
    columns = min(2, len(panels))
    lines = -(-len(panels) // columns)
    tallest = max(len(session["rows"]) // len(session["workloads"]) for session, _ in panels)
    figure = new_figure(figsize=(6.5 * columns, (0.22 * tallest + 1.1) * lines), layout="constrained")
    from matplotlib.patches import Patch  # after the figure, whose import suppresses messages

    axes = figure.subplots(lines, columns, squeeze=False).flat
    for axis, (session, workload) in zip(axes, panels, strict=False):
        _panel(axis, session, workload)
    for axis in list(axes)[len(panels) :]:
        axis.set_visible(False)
    handles = [Patch(color=color, label=dtype) for dtype, color in _COLORS.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    machine = document["machine"]
    figure.suptitle(
        f"{machine['processor']}, {counted(document['threads'], 'thread')}; {document['date'][:10]}", fontsize="medium"
    )
    return save_figure(figure, path)


def _panel(axis, session: dict, workload: str) -> None:
    about = session["workloads"][workload]
    rows = [row for row in session["rows"] if row["workload"] == workload and row["status"] == "ok"][::-1]
    key = "p50_ms" if about["latency"] else "tokens_per_second"
    bars = axis.barh(
        [row["variant"] for row in rows], [row[key] for row in rows], color=[_COLORS[row["dtype"]] for row in rows]
    )
    for bar, row in zip(bars, rows, strict=True):
        if row["peer"] == "fastbert":
            bar.set(edgecolor="#d1242f", linewidth=1.5)
    axis.bar_label(bars, fmt="{:,.1f}" if about["latency"] else "{:,.0f}", fontsize="x-small", padding=2)
    axis.margins(x=0.15)
    axis.tick_params(labelsize="x-small")
    axis.spines[["top", "right"]].set_visible(False)
    unit = "milliseconds, less is better" if about["latency"] else "tokens per second"
    axis.set_title(f"{workload} {session['kind']}, {session['model']}: {about['title']}\n{unit}", fontsize="small")
