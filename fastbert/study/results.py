"""The results of a study as one JSON value, which has everything that the report shows."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence

from ..errors import InputError
from ..wording import in_utf8
from . import compare
from .cells import Cell
from .compare import Figure
from .corpus import unigram_loss
from .definition import PERPLEXITY, RowSpec, Study, TaskSpec, predicts_words
from .pretrained import digest_at, step_at
from .run import Work


def collect(work: Work, command: str) -> dict:
    """Reads the results of all jobs, which must be finished.

    Returns:
        strict JSON; everything that depends on time or on the machine is under "measured", the rest is the same in
        every run.
    """
    from .machine import description

    study = work.study
    models = {(row.name, seed): work.model_of[row.name, seed].result() for row in study.rows for seed in study.seeds}
    cells = {(cell.row, cell.task.column, cell.seed): cell for cell in work.cells}
    pretraining = {row.name: _pretraining(study, row, work, models) for row in study.rows}
    columns = _columns(study, cells, pretraining)
    margins = {name: min(found["margins"]) for name, found in pretraining.items() if found["margins"]}
    pairs = {c["column"]: compare.pairs(c["column"], figures) for c, figures in columns}
    return {
        "study": study.name,
        "title": study.title,
        "about": study.about,
        "scale": study.scale,
        "seeds": list(study.seeds),
        "file": study.text,
        "pretrain": study.pretrain,
        "corpus": list(map(in_utf8, study.corpus)),
        "data": work.data.name,
        "unigram_loss": unigram_loss(work.data),
        "rows": [
            {
                "row": row.name,
                "pretraining": pretraining[row.name],
                "figures": {c["column"]: _figure(figures[row.name]) for c, figures in columns},
            }
            for row in study.rows
        ],
        "columns": [column for column, _ in columns],
        "orders": {name: compare.summary(found) for name, found in pairs.items()},
        "against_the_paper": [
            _disagreement(pair, figures, margins, _uses(study, column["column"], pretraining))
            for column, figures in columns
            for pair in pairs[column["column"]]
            if not pair.agrees
        ],
        "measured": {"command": command, **description(), **_effort(work, models)},
    }


def scaled(task: TaskSpec, value: float) -> float:
    """A metric in per cent, as in the paper; SQuAD's official figures already are."""
    return value if task.task.startswith("squad") else 100 * value


def _pretraining(study: Study, row: RowSpec, work: Work, models: dict) -> dict:
    """A row's pre-training over its seeds, at the step where its model is taken."""
    found = [models[row.name, seed] for seed in study.seeds]
    wanted = [work.model_of[row.name, seed] for seed in study.seeds]
    config = wanted[0].config
    step = step_at(config, row.at)
    heldout = [f["heldout"] if step == config.steps else _point(f["curve"], step) for f in found]
    words = predicts_words(config)
    points = [point for point in heldout if point and words]  # static vectors have no loss
    losses = [point["mlm_loss"] for point in points]
    for loss in losses:
        if not math.isfinite(loss):
            raise InputError(
                f"row {row.name!r}: expected a finite held-out loss after step {step}, got {loss}: its pre-training "
                "has diverged, and another lr may help"
            )
    entropies = [point["unigram_entropy"] for point in points]
    return {
        "model": wanted[0].name,
        "steps": step,
        # A run keeps the weights of its lowest held-out loss, which it reaches before the end if it begins to overfit.
        "weights_of_step": [f["best_step"] if step == config.steps else step for f in found if f["curve"]],
        "tokens": [round(f["tokens"] * step / f["steps"]) for f in found],
        "losses": losses,
        "unigram_entropies": entropies,
        "margins": [entropy - loss for entropy, loss in zip(entropies, losses, strict=True)],
        "accuracies": [point["mlm_acc"] for point in points],
        "next_sentence": [point["nsp_acc"] for point in heldout if "nsp_acc" in point],
        "curve": [_strict(point) for point in found[0]["curve"] if words],
        "keys": [f["key"] for f in found],
        "weights": [digest_at(model, f, step) for model, f in zip(wanted, found, strict=True)],
    }


def _strict(point: dict) -> dict:
    """The point with None for numbers that JSON lacks, since a loss may be infinite during a pre-training."""
    return {name: value if math.isfinite(value) else None for name, value in point.items()}


def _point(curve: Sequence[dict], step: int) -> dict:
    return next(point for point in curve if point["step"] == step)


def _columns(study: Study, cells: dict, pretraining: dict) -> list[tuple[dict, dict[str, Figure]]]:
    """Each column's description, and its figures by row."""
    found = []
    if study.perplexity:
        figures = {
            row.name: Figure(
                tuple(_perplexity(row.name, loss) for loss in pretraining[row.name]["losses"]),
                row.paper.get(study.perplexity),
            )
            for row in study.rows
        }
        found.append(({"column": PERPLEXITY, "metric": "perplexity", "paper": study.perplexity}, figures))
    for task in study.tasks:
        figures = {}
        for row in study.rows:
            own = [cells[row.name, task.column, seed] for seed in study.seeds]
            figures[row.name] = _figure_of(row, own)
        one = cells[study.rows[0].name, task.column, study.seeds[0]]
        result = one.result()
        column = {"column": task.column, "metric": one.metric, "paper": task.paper, "task": task.task}
        column |= {"training_rows": result["rows"][0], "dev_rows": result["rows"][1]}
        rows_of = {row.name: cells[row.name, task.column, study.seeds[0]].result()["rows"] for row in study.rows}
        if any(sizes != result["rows"] for sizes in rows_of.values()):
            column["rows_of"] = rows_of
        found.append((column, figures))
    return found


def _perplexity(row: str, loss: float) -> float:
    try:
        return math.exp(loss)
    except OverflowError:
        raise InputError(
            f"row {row!r}: expected a held-out loss that has a perplexity, got {loss:g} nats: its pre-training has "
            "diverged, and another lr may help"
        ) from None


def _figure_of(row: RowSpec, own: Sequence[Cell]) -> Figure:
    task, results = own[0].task, [cell.result() for cell in own]
    metric = own[0].metric
    guess = results[0]["guess"].get(metric)
    return Figure(
        tuple(scaled(task, result["metrics"][metric]) for result in results),
        row.paper.get(task.paper) if task.paper else None,
        None if guess is None else scaled(task, guess),
    )


def _figure(figure: Figure) -> dict:
    return {**dataclasses.asdict(figure), "mean": figure.mean, "sd": figure.sd}


def _uses(study: Study, column: str, pretraining: dict) -> dict[str, compare.ModelUse]:
    """How each row's model is used for a column; empty for a column that is not a task."""
    task = next((task for task in study.tasks if task.column == column), None)
    if task is None:
        return {}
    return {
        row.name: compare.ModelUse(
            f"{pretraining[row.name]['keys'][0]} at {row.at}", study.task_of(row, task).features is not None
        )
        for row in study.rows
    }


def _disagreement(pair: compare.Pair, figures: dict[str, Figure], margins: dict[str, float], uses: dict) -> dict:
    errors = None if pair.errors is None or math.isinf(pair.errors) else pair.errors
    return {**dataclasses.asdict(pair), "errors": errors, "reason": compare.reason(pair, figures, margins, uses)}


def _total(results, name: str) -> float:
    """The sum of a measurement over jobs."""
    return sum(found["measured"][name] for found in results)


def spent(works: Sequence[Work]) -> dict[str, float]:
    """The seconds and processor seconds of all jobs of some studies, which must be finished; shared jobs count once."""
    jobs = {job.key: job for work in works for job in (*work.models, *work.cells)}
    results = [job.result() for job in jobs.values()]
    return {name: _total(results, name) for name in ("seconds", "processor_seconds")}


def _effort(work: Work, models: dict) -> dict:
    """The seconds and rates of the jobs, each counted once, wherever they were done."""
    once = {found["key"]: found for found in models.values()}.values()
    cells = {cell.key: cell.result() for cell in work.cells}.values()
    rates = {
        row.name: statistics.fmean(
            models[row.name, seed]["tokens"] / models[row.name, seed]["measured"]["seconds"]
            for seed in work.study.seeds
        )
        for row in work.study.rows
    }
    commits = sorted({str(found["measured"]["commit"]) for found in (*once, *cells)})
    devices = sorted({found["measured"]["device"] for found in (*once, *cells)})
    threads = sorted({found["measured"]["threads"] for found in (*once, *cells)})
    return {
        "pretraining_seconds": _total(once, "seconds"),
        "finetuning_seconds": _total(cells, "seconds"),
        "pretraining_processor_seconds": _total(once, "processor_seconds"),
        "finetuning_processor_seconds": _total(cells, "processor_seconds"),
        "pretrained_tokens": sum(found["tokens"] for found in once),
        "finetuned_tokens": sum(found["tokens"] for found in cells),
        "tokens_per_second": rates,
        "made_at_commits": commits,
        "made_on": devices,
        "threads": threads,
    }
