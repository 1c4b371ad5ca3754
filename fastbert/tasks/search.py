"""Several fine-tunings of one model in one process, of which the best on the dev rows is kept."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import FastbertError
from ..train.engine import TrainingDiverged
from ..weights.loading import warnings_held
from .base import Row, Task
from .config import FinetuneConfig
from .finetune import interrupted, opened, result_again
from .predict import NotFiniteError
from .results import FinetuneResult
from .runs import FinetuneRun, Start, started
from .saving import FinetuneCheckpoints, Progress, Stopped, identity
from .training import Callbacks, Data, Training, epoch_batches, prepare

RECIPE = ("batch_size", "lr", "epochs", "seed")
"""The options in which the trials of a search differ, for their table."""
_IN_TRIALS = {"epoch": "best_epoch", "step": "best_step"}
"""What the line of a training calls the figures of its best evaluation that would not be clear there."""


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
    """Fine-tunes a new model by each recipe; returns the result, and the model, of the best trial's best epoch.

    Every trial does what `finetune` does with its recipe, on a model loaded after ``torch.manual_seed(config.seed)``.
    Signals and ``config.resume`` work as there; finished trials are not repeated.

    Args:
        task, tokenizer, train_rows, dev_rows, out, source, callbacks: as in `finetune`.
        model: the model of the first trial, whose head was drawn after ``torch.manual_seed(configs[0].seed)``.
        load: makes such a model for each further trial.
        configs: the recipes, with the same max_seqlen and for the same rows (see `SearchConfig.trials`).
        on_trial: called with each trial's line: trial (from 1), the recipe, wall_seconds, and the record of the best
            epoch, with ``diverged`` and the reason if it diverged after that; or ``failed`` with the reason.

    Raises:
        InputError, CheckpointError: those of `finetune`, before the first trial.
        FastbertError: every trial diverged before any evaluation.
    """
    now = {} if out is None else identity(task, model, tokenizer, train_rows, dev_rows, configs)
    with contextlib.nullcontext(Start()) if out is None else started(out, configs[0].resume) as start:
        if start.ended:
            return result_again(task, model, tokenizer, dev_rows, configs[0], out, now), model
        data = prepare(task, model, tokenizer, train_rows, dev_rows, configs[0])
        steps = [sum(map(len, epoch_batches(data.train, config))) for config in configs]
        callbacks = _with_total(callbacks or Callbacks(), sum(steps))
        with contextlib.ExitStack() as held:
            run, checkpoints, progress = None, None, Progress()
            if out is not None:
                directory = opened(out, task, configs[0], source or {}, now, start, callbacks)
                run, checkpoints = held.enter_context(directory)
                progress = checkpoints.progress
                run.write_trials(progress.lines)
            trainings = _Trainings(task, data, model, run, checkpoints, progress, callbacks)
            try:
                with contextlib.nullcontext() if checkpoints is None else checkpoints:
                    trainings.make_all(load, configs, steps, on_trial)
                    result = trainings.result(start)
                    if run is not None:
                        trial = progress.winner_trial
                        best = {"config": configs[trial - 1], "trial": trial}
                        result = run.finish(task, result, trainings.model, tokenizer, data.dev.rows, **best)
            except Stopped as stopped:
                return interrupted(stopped, data, checkpoints), trainings.model
            late = None if checkpoints is None else checkpoints.signal
            return dataclasses.replace(result, late_signal=late), trainings.model


@dataclass
class _Trainings:
    """Runs the trainings of a search, one after the other.

    Args:
        model: the model of the current training.
    """

    task: Task
    data: Data
    model: torch.nn.Module
    run: FinetuneRun | None
    checkpoints: FinetuneCheckpoints | None
    progress: Progress
    callbacks: Callbacks

    def make_all(
        self,
        load: Callable[[], torch.nn.Module],
        configs: Sequence[FinetuneConfig],
        steps: Sequence[int],
        on_trial: Callable[[dict], Any] | None,
    ) -> None:
        """Runs the remaining trainings.

        Args:
            load, configs, on_trial: as in `search`.
            steps: the number of steps of each recipe.

        Raises:
            Stopped: a signal has come.
        """
        first = self.progress.trial
        for number, config in enumerate(configs[first - 1 :], first):
            if number > 1:
                torch.manual_seed(config.seed)
                with warnings_held():  # they were shown when the first model was loaded
                    self.model = load()
            line = self.make(config, steps[number - 1])
            if on_trial is not None:
                on_trial(line)

    def make(self, config: FinetuneConfig, steps: int) -> dict:
        """Runs the next training, of ``steps`` steps; returns its line. If it diverges, the line has the reason, and
        the search continues. Raises Stopped."""
        progress = self.progress
        training = Training(self.task, self.model, self.data, config, self.callbacks, self.checkpoints)
        with contextlib.closing(training):
            if self.checkpoints is not None:
                self.checkpoints.restore(training)
            try:
                with contextlib.nullcontext() if self.run is None else self.run.log(training, progress.trial) as log:
                    best = training.run(log)
                record = {_IN_TRIALS.get(name, name): value for name, value in best.record.items()}
                record |= {} if best.diverged is None else {"diverged": best.diverged}
            except (TrainingDiverged, NotFiniteError) as error:
                best, record = None, {"failed": str(error)}
        recipe = {name: getattr(config, name) for name in RECIPE}
        line = {"trial": progress.trial, **recipe, **record, "wall_seconds": training.wall_seconds}
        winner = progress.winner
        if best is not None and (winner is None or best.record[best.metric] > winner.record[winner.metric]):
            progress.winner, progress.winner_trial = best, progress.trial
        progress.lines.append(line)
        progress.trial += 1
        progress.steps += steps
        if self.run is not None:
            self.run.write_trials(progress.lines)
            self.checkpoints.after_training()
        return line

    def result(self, start: Start) -> FinetuneResult:
        """The result of the best training, whose weights the model gets. Raises FastbertError if all diverged."""
        best, trials, dev = self.progress.winner, self.progress.lines, self.data.dev
        if best is None:
            raise FastbertError(f"all of {len(trials)} trainings failed, the last because {trials[-1]['failed']}")
        best.settle(self.task, dev, self.model)
        told = {"wall_seconds": time.perf_counter() - start.at, "diverged": best.diverged}
        if self.checkpoints is not None:
            told["wall_seconds"] = self.checkpoints.wall_seconds
        return FinetuneResult(best.history, best.record, best.predictions, dev.guess, trials, **told)


def trials_table(trials: Sequence[dict], metrics: Sequence[str]) -> list[tuple]:
    """A table of the trials: a header and one line each, the best by the first metric first, failed ones last."""
    columns = ("trial", *RECIPE, "best_epoch", *metrics, "wall_seconds")
    ranked = sorted(trials, key=lambda trial: -trial.get(metrics[0], -math.inf))
    lines = [tuple(f"{t[c]:g}" if c == "lr" else t.get(c, "-") for c in columns) for t in ranked]
    return [columns, *lines]


def _with_total(callbacks: Callbacks, steps: int) -> Callbacks:
    """Callbacks whose ``on_step`` gets the total number of steps of all trials."""
    on_step = callbacks.on_step
    return callbacks if on_step is None else dataclasses.replace(callbacks, on_step=lambda _: on_step(steps))
