"""report.html of one pre-training run or of several side by side: figures, options that differ, curves."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from .. import svg
from ..errors import InputError
from ..report import HtmlReport
from ..text_files import read_yaml
from .config import PretrainConfig
from .metrics import read_metrics

_MOST_POINTS = 1000
# Values of rows that are drawn against the step: name, label of the axis, factor, whether the axis is logarithmic.
_CURVES = (
    ("mlm_loss", "{words} cross-entropy (nats)", 1.0, False),
    ("nsp_loss", "next-sentence cross-entropy (nats)", 1.0, False),
    ("mlm_acc", "{words} accuracy (%)", 100.0, False),
    ("nsp_acc", "next-sentence accuracy (%)", 100.0, False),
    ("lr", "learning rate", 1.0, False),
    ("grad_norm", "norm of the gradient", 1.0, True),
    ("tokens_per_second", "tokens a second", 1.0, False),
    ("mfu", "share of the peak, MFU (%)", 100.0, False),
    ("memory_mib", "peak memory (MiB)", 1.0, False),
    ("loss_scale", "loss scale", 1.0, True),
)
# Values of rows whose median is reported: name, label, factor.
_MEDIANS = (
    ("tokens_per_second", "tokens a second (median)", 1),
    ("executed_tokens_per_second", "executed tokens a second (median)", 1),
    ("mfu", "MFU (median, %)", 100),
)
_PARTS = ("data", "forward", "backward", "optimizer", "communication")
# Values that must be numbers, since a report computes with them.
NUMBERS = {
    *(name for name, *_ in _CURVES),
    *(f"{part}_seconds" for part in _PARTS),
    *("seconds", "unigram_entropy", "executed_tokens_per_second", "skipped_steps"),
}


@dataclass(frozen=True)
class Run:
    """A run directory's options and rows.

    Args:
        name: the end of the directory's path, as much as distinguishes it from other runs.
        directory: the path.
        config: the options.
        rows: the rows of metrics.jsonl.
    """

    name: str
    directory: Path
    config: PretrainConfig
    rows: list[dict]

    def kind(self, kind: str) -> list[dict]:
        """The rows of one kind: "train", "heldout"."""
        return [row for row in self.rows if row["kind"] == kind]


def read_runs(directories: Sequence[str | os.PathLike]) -> list[Run]:
    """Reads run directories of `fastbert pretrain`.

    Raises:
        InputError: no directory was given, or one holds no run, or a run has no rows yet.
    """
    if not directories:
        raise InputError("expected at least one run directory of `fastbert pretrain`, got none")
    paths = [Path(directory) for directory in directories]
    names = _names(paths)
    runs = []
    for path, name in zip(paths, names, strict=True):
        if not (path / "config.yaml").is_file():
            raise InputError(f"{path}: expected a run directory of `fastbert pretrain`, found no config.yaml in it")
        if "task" in read_yaml(path / "config.yaml"):
            raise InputError(
                f"{path}: expected a run directory of `fastbert pretrain`, got one of `fastbert finetune`, whose "
                "results are in its dev_metrics.json"
            )
        rows = read_metrics(path / "metrics.jsonl", NUMBERS)
        if not rows:
            raise InputError(f"{path}: expected rows in metrics.jsonl, found none")
        runs.append(Run(name, path, PretrainConfig.from_yaml(path / "config.yaml"), rows))
    return runs


def _names(paths: Sequence[Path]) -> list[str]:
    """The ends of the paths, with as many parts as are needed to distinguish them."""
    parts = [path.resolve().parts for path in paths]
    for count in range(1, max(map(len, parts), default=1) + 1):
        names = ["/".join(part[-count:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    return [f"{path} ({number})" for number, path in enumerate(paths, 1)]


def _predicted_words(configs: Sequence[PretrainConfig]) -> str:
    """What the runs predict, by their objectives, for labels: "masked-LM", "next-word" or both."""
    names = {"mlm": "masked-LM", "causal": "next-word"}
    return " or ".join(name for key, name in names.items() if any(c.samples.objective == key for c in configs))


def figures(run: Run) -> dict[str, float | int | str]:
    """The figures of a run, by label; those that it did not measure are left out."""
    train = run.kind("train")
    last = train[-1] if train else {}
    seconds = sum(row.get("seconds", 0.0) for row in train)
    found = {
        "model": run.config.model,
        "optimiser": run.config.optimizer,
        "steps": run.rows[-1]["step"] if run.rows else 0,
        "training minutes": seconds / 60,
        "last training loss (nats)": last.get("loss", last.get("mlm_loss")),  # with that of next sentences
        **_heldout_figures(run),
    }
    for name, label, scale in _MEDIANS:
        values = [row[name] for row in train if name in row]
        found[label] = scale * median(values) if values else None
    for part in _PARTS:
        spent = sum(row.get(f"{part}_seconds", 0.0) for row in train)
        if seconds and any(f"{part}_seconds" in row for row in train):
            found[f"time in {part} (%)"] = 100 * spent / seconds
    found |= {"peak memory (MiB)": last.get("memory_mib"), "skipped steps": last.get("skipped_steps")}
    return {name: value for name, value in found.items() if value is not None}


def _heldout_figures(run: Run) -> dict[str, float | None]:
    finite = [row for row in run.kind("heldout") if math.isfinite(row.get("mlm_loss", math.nan))]
    if not finite:
        return {}
    # Losses of different phases cannot be compared, so the best of the last phase counts.
    phase = [row for row in finite if row.get("phase") == finite[-1].get("phase")]
    best = min(phase, key=lambda row: row["mlm_loss"] + row.get("nsp_loss", 0.0))
    words, predicted = _predicted_words([run.config]), best.get("targets") != 0
    return {
        "best held-out step": best["step"],
        f"held-out {words} loss (nats)": best["mlm_loss"] if predicted else None,
        "unigram entropy of the same (nats)": best.get("unigram_entropy") if predicted else None,
        f"held-out {words} accuracy (%)": 100 * best["mlm_acc"] if "mlm_acc" in best and predicted else None,
        "held-out next-sentence accuracy (%)": 100 * best["nsp_acc"] if "nsp_acc" in best else None,
    }


def table(runs: Sequence[Run]) -> tuple[list[str], list[list]]:
    """The header and the lines of a table with one figure per line and one run per column."""
    columns = [figures(run) for run in runs]
    names = list(dict.fromkeys(name for column in columns for name in column))
    return ["", *(run.name for run in runs)], [[name, *(c.get(name, "") for c in columns)] for name in names]


def differences(runs: Sequence[Run]) -> tuple[list[str], list[list]]:
    """The header and the lines of a table of the options in which runs differ, except out and resume."""
    options = [run.config.options() for run in runs]
    differ = [name for name in options[0] if len({str(option[name]) for option in options}) > 1]
    names = [name for name in differ if name not in ("out", "resume")]
    return ["option", *(run.name for run in runs)], [[n, *(str(o[n]) for o in options)] for n in names]


def write_report(runs: Sequence[Run], path: str | os.PathLike) -> Path:
    """Writes a self-contained page about one run or several; returns its path."""
    alone = len(runs) == 1
    page = HtmlReport(f"Pre-training run {runs[0].name}" if alone else f"{len(runs)} pre-training runs")
    page.heading("Figures")
    page.table(*table(runs))
    header, lines = differences(runs)
    if not alone:
        page.heading("Options that differ")
        if lines:
            page.table(header, lines)
        else:
            page.text("None: the runs have the same options.")
    page.heading("Curves")
    page.text("Thin lines are training, thick ones with dots held-out documents.", note=True)
    for name, label, scale, logarithmic in _CURVES:
        if any(name in row for run in runs for row in run.rows):
            label = label.format(words=_predicted_words([run.config for run in runs]))
            page.drawing(_curve(runs, name, label, scale, logarithmic))
    if any(f"{part}_seconds" in row for run in runs for row in run.rows for part in _PARTS):
        page.heading("Where the time goes")
        page.drawing(_time(runs))
    if alone:
        page.heading("Options")
        page.code(runs[0].config.to_yaml())
    return page.save(path)


def write_pages(run_dir: Path, config: PretrainConfig, rows: list[dict], best: dict) -> list[Path]:
    """Writes loss.png and report.html of a finished run; returns the paths of everything in its directory."""
    from .plots import loss_plot

    words = _predicted_words([config])
    plot = loss_plot(rows, run_dir / "loss.png", baseline=best.get("unigram_entropy"), words=words)
    report = write_report([Run(run_dir.name, run_dir, config, rows)], run_dir / "report.html")
    names = ("model", "checkpoints", "metrics.jsonl", "steps.jsonl", "tensorboard", "config.yaml")
    return [run_dir / name for name in names] + [plot, report]


def _means(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Replaces groups of neighbouring points by their means if there are too many, to keep the page small."""
    stride = -(-len(points) // _MOST_POINTS) or 1
    groups = (points[first : first + stride] for first in range(0, len(points), stride))
    return [(group[-1][0], sum(value for _, value in group) / len(group)) for group in groups]


def _curve(runs: Sequence[Run], name: str, label: str, scale: float, logarithmic: bool) -> str:
    lines = []
    for number, run in enumerate(runs):
        named = False
        for kind in ("train", "heldout"):
            points = [
                (row["step"], scale * row[name])
                for row in run.kind(kind)
                if name in row and math.isfinite(row[name]) and (row[name] > 0 or not logarithmic)
            ]
            if points:
                shown = run.name if len(runs) > 1 and not named else ""
                lines.append(
                    svg.Curve(_means(points), svg.COLOURS[number % len(svg.COLOURS)], shown, kind == "heldout")
                )
                named = True
    return svg.line_chart(lines, label, "optimiser steps", logarithmic)


def _time(runs: Sequence[Run]) -> str:
    """One bar per run: the shares of its steps' time in each part, and the rest."""
    rows = []
    for run in runs:
        known = figures(run)
        shares = [known.get(f"time in {part} (%)", 0.0) for part in _PARTS]
        rows.append((run.name, [*shares, max(100.0 - sum(shares), 0.0)]))
    colours = [*zip(_PARTS, svg.COLOURS, strict=False), ("rest", "#d0d7de")]
    return svg.stacked_bars(rows, colours, "share of the time of steps (%)")
