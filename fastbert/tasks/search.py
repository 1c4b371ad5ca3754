"""Several fine-tunings of one model in one process, of which the best on the dev rows is kept."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from ..errors import FastbertError
from ..train.engine import TrainingDiverged
from .base import Row, Task
from .config import FinetuneConfig
from .finetune import Best, Callbacks, Data, FinetuneResult, plan, prepare, train
from .predict import NotFiniteError
from .runs import FinetuneRun

RECIPE = ("batch_size", "lr", "epochs", "seed")
"""What the trials of a search differ in, as their table shows it."""


def search(
    task: Task,
    model: torch.nn.Module,
    load: Callable[[], torch.nn.Module],
    tokenizer,
    train_rows: Sequence[Row],
    dev_rows: Sequence[Row],
    configs: Sequence[FinetuneConfig],
    *,
    out: str | os.PathLike | None = None,
    source: dict | None = None,
    callbacks: Callbacks | None = None,
    on_trial: Callable[[dict], Any] | None = None,
) -> tuple[FinetuneResult, torch.nn.Module]:
    """Trains a fresh model by each recipe; the result, and the model, are those of the best trial's best epoch.

    Every trial is what `finetune` does with its recipe on a model loaded after ``torch.manual_seed(config.seed)``.

    Args:
        model: of the first trial, with a head drawn after ``torch.manual_seed(configs[0].seed)``.
        load: gives such a model for each further trial.
        configs: the recipes, of one length and the same rows (see `SearchConfig.trials`).
        on_trial: called with each trial's line: trial (from 1), the recipe, wall_seconds, and the best epoch's record;
            or ``failed``, why.

    Raises:
        InputError: as `finetune`, before the first trial.
        FastbertError: every trial diverged.
    """
    data = prepare(task, model, tokenizer, train_rows, dev_rows, configs[0])
    run = None if out is None else FinetuneRun(out, task, configs[0], source or {})
    steps = sum(len(batches) for config in configs for batches in plan(data.train, config))
    callbacks = _with_total(callbacks or Callbacks(), steps)
    best, best_config, trials = None, configs[0], []
    for number, config in enumerate(configs, 1):
        if number > 1:
            torch.manual_seed(config.seed)
            with warnings_off():
                model = load()
        trial, line = _trial(task, model, data, config, number, run, callbacks)
        trials.append(line)
        if trial is not None and (best is None or trial.record[trial.metric] > best.record[best.metric]):
            best, best_config = trial, config
        if on_trial is not None:
            on_trial(line)
    if best is None:
        raise FastbertError(f"all of {len(trials)} trainings failed, the last because {trials[-1]['failed']}")
    best.settle(task, data.dev.rows, model)
    result = FinetuneResult(best.history, best.record, best.predictions, data.dev.guess, trials)
    if run is not None:
        result = run.finish(task, result, model, tokenizer, data.dev.rows, best_config)
    return result, model


def _trial(
    task: Task,
    model: torch.nn.Module,
    data: Data,
    config: FinetuneConfig,
    number: int,
    run: FinetuneRun | None,
    callbacks: Callbacks,
) -> tuple[Best | None, dict]:
    """One training, and its line; no training where it diverged, which the others can do without."""
    start = time.perf_counter()
    try:
        with contextlib.nullcontext() if run is None else run.log(number) as log:
            trial = train(task, model, data, config, log, callbacks)
        record = {"best_epoch" if key == "epoch" else key: value for key, value in trial.record.items()}
    except (TrainingDiverged, NotFiniteError) as error:
        trial, record = None, {"failed": str(error)}
    recipe = {name: getattr(config, name) for name in RECIPE}
    line = {"trial": number, **recipe, **record, "wall_seconds": time.perf_counter() - start}
    if run is not None:
        run.log_trial(line)
    return trial, line


def trials_table(trials: Sequence[dict], metrics: Sequence[str]) -> list[tuple]:
    """The trials, the best by the first metric first and those that failed last: a header and a line each."""
    columns = ("trial", *RECIPE, "best_epoch", *metrics, "wall_seconds")
    ranked = sorted(trials, key=lambda trial: -trial.get(metrics[0], -math.inf))
    lines = [tuple(f"{t[c]:g}" if c == "lr" else t.get(c, "-") for c in columns) for t in ranked]
    return [columns, *lines]


def _with_total(callbacks: Callbacks, steps: int) -> Callbacks:
    """Callbacks that are told the steps of all trials together."""
    on_step = callbacks.on_step
    return callbacks if on_step is None else dataclasses.replace(callbacks, on_step=lambda _: on_step(steps))


@contextlib.contextmanager
def warnings_off() -> Iterator[None]:
    """What a directory lacks was said when the first model was loaded from it."""

    def drop(record: logging.LogRecord) -> bool:
        return False

    logger = logging.getLogger("fastbert")
    logger.addFilter(drop)
    try:
        yield
    finally:
        logger.removeFilter(drop)
