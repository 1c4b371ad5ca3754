"""The result of a fine-tuning, and the files of labelled rows: metrics, predictions, errors and tables."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ..result_files import atomic_write, write_json, write_json_lines
from ..text_files import without_gz

if TYPE_CHECKING:
    from .base import Row, Task


@dataclass(frozen=True)
class FinetuneResult:
    """The result of a fine-tuning.

    Args:
        history: one dictionary per evaluation on the dev rows: epoch (with ``eval_every`` also fractions), step,
            train_loss, train_seconds and tokens_per_second since the one before, dev_loss, the metrics.
        best: the entry with the largest first metric, the earliest of equals.
        predictions: those of the best evaluation, one per dev row.
        guess: the metrics of predictions made without looking at the texts (`Task.guess`); empty if the task has none.
        trials: one dictionary per training, if there were several (see `search`).
        model_dir, paths: what was written; None and empty without a run directory.
        wall_seconds: the duration in seconds, including encoding, and for a resumed run the time before its last
            checkpoint.
        diverged: why the training (of a search, the best one) ended before its last epoch, if it diverged; otherwise
            None.
        interrupted: the name of the signal that ended the run early, or None. If so, there are no predictions and no
            model, and history and best cover the evaluations until then.
        late_signal: the name of a signal that came after the last step, so that the run is complete, or None.
    """

    history: list[dict]
    best: dict
    predictions: list
    guess: dict[str, float] = field(default_factory=dict)
    trials: list[dict] = field(default_factory=list)
    model_dir: Path | None = None
    paths: list[Path] = field(default_factory=list)
    wall_seconds: float = 0.0
    diverged: str | None = None
    interrupted: str | None = None
    late_signal: str | None = None


def results_name(data: str | os.PathLike) -> str:
    """The prefix of the result files for a data file: its name without suffix, or ``stdin`` for standard input."""
    return "stdin" if os.fspath(data) == "-" else Path(without_gz(data)).stem


def predictions_path(task: Task, out: str | os.PathLike, prefix: str) -> Path:
    """The file into which `write_results` writes the predictions."""
    return Path(out) / f"{prefix}_predictions{Path(task.submission).suffix}"


def write_results(
    task: Task, rows: Sequence[Row], predictions: Sequence, metrics: dict, out: str | os.PathLike, prefix: str
) -> list[Path]:
    """Writes the results on labelled rows into a directory: PREFIX_metrics.json, PREFIX_predictions (in the official
    format), PREFIX_errors.jsonl, and each of the task's tables as PREFIX_NAME.tsv; returns the paths."""
    from ..train.metrics import plain

    out = Path(out)
    paths = [
        out / f"{prefix}_metrics.json",
        predictions_path(task, out, prefix),
        out / f"{prefix}_errors.jsonl",
    ]
    write_json(plain({"task": task.name, "rows": len(rows), **metrics}), paths[0])
    paths[1:2] = task.write_predictions(rows, predictions, paths[1])
    write_json_lines(task.errors(rows, predictions), paths[-1])
    for name, table in task.tables(rows, predictions).items():
        paths.append(write_table(table, out / f"{prefix}_{name}.tsv"))
    return paths


def write_table(lines: Iterable[Sequence], path: Path) -> Path:
    """Writes a table, its header first, as tab-separated lines; returns the path."""
    with atomic_write(path) as file:
        file.writelines("\t".join(map(show_cell, line)) + "\n" for line in lines)
    return path


def show_cell(value: object) -> str:
    """A cell of a table as text: floats with four decimals."""
    return f"{value:.4f}" if isinstance(value, float) else str(value)
