"""Fine-tuning: the machinery that every task shares. It calls the methods of `Task` and nothing else of a task."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from ..train.distributed import current, on_first, same_on_all
from .base import Row, Task
from .config import FinetuneConfig
from .results import FinetuneResult
from .runs import ENDED, FinetuneRun, Start, read_ended, started
from .saving import FinetuneCheckpoints, Stopped, check_same, identity
from .training import Best, Callbacks, Data, EvaluationSet, Training, prepare

__all__ = ["Callbacks", "FinetuneResult", "finetune"]


def finetune(
    task: Task,
    model: torch.nn.Module,
    tokenizer,
    train_rows: Sequence[Row],
    dev_rows: Sequence[Row],
    config: FinetuneConfig,
    *,
    out: str | os.PathLike | None = None,
    source: dict | None = None,
    callbacks: Callbacks | None = None,
) -> FinetuneResult:
    """Fine-tunes a model in place; at the end it has the weights of its best evaluation.

    If the training diverges after an evaluation, it ends there, with a warning. With a run directory, Ctrl-C, SIGTERM
    and SIGHUP save and return, and ``config.resume="auto"`` continues; if the run has ended already, its result is
    returned again.

    Args:
        task: from `registry.get`; it has read the rows.
        model: from ``task.model(directory)``, which draws a new head from torch's generator: seed that before.
        tokenizer: the model's, as `load_tokenizer` returns it.
        train_rows, dev_rows: rows to train on, and to evaluate on (see `FinetuneConfig.eval_every`).
        config: the recipe.
        out: the run directory to make; None writes nothing.
        source: paths of model and data, to be recorded in config.yaml.
        callbacks: called while training goes on.

    Raises:
        InputError: rows, tokenizer, lengths and model do not fit together, or the run directory exists, or another run
            is using it; this is checked before training starts.
        CheckpointError: the run directory belongs to another model, recipe or data, or its checkpoints are damaged.
        FastbertError: the training diverged before any evaluation.
    """
    if out is None:
        began = time.perf_counter()
        data = prepare(task, model, tokenizer, train_rows, dev_rows, config)
        best = train(task, model, data, config, callbacks)
        best.settle(task, data.dev, model)
        told = {"wall_seconds": time.perf_counter() - began, "diverged": best.diverged}
        return FinetuneResult(best.history, best.record, best.predictions, data.dev.guess, **told)
    with started(out, config.resume) as start:
        now = identity(task, model, tokenizer, train_rows, dev_rows, [config])
        # Weights may differ, since new heads may have been drawn from other seeds; those of rank 0 are used.
        alike = {name: value for name, value in now.items() if name != "model's weights"}
        rounding = ("accumulate", "activation_checkpointing", "float32_matmul_precision")
        divided = {name: getattr(config, name) for name in rounding}
        same_on_all(current(), alike | divided)
        now["model's weights"] = on_first(current(), lambda: now["model's weights"])
        if start.ended:
            return result_again(task, model, tokenizer, dev_rows, config, out, now)
        data = prepare(task, model, tokenizer, train_rows, dev_rows, config)
        with opened(out, task, config, source or {}, now, start, callbacks) as (run, checkpoints):
            try:
                with checkpoints:
                    best = train(task, model, data, config, callbacks, run, checkpoints)
                    best.settle(task, data.dev, model)
                    told = {"wall_seconds": checkpoints.wall_seconds, "diverged": best.diverged}
                    result = FinetuneResult(best.history, best.record, best.predictions, data.dev.guess, **told)
                    if run is not None:
                        result = run.finish(task, result, model, tokenizer, data.dev.rows)
            except Stopped as stopped:
                return interrupted(stopped, data, checkpoints)
            return dataclasses.replace(result, late_signal=checkpoints.signal)


@contextlib.contextmanager
def opened(
    out, task: Task, config: FinetuneConfig, source: dict, now: dict, start: Start, callbacks: Callbacks | None
) -> Iterator[tuple[FinetuneRun | None, FinetuneCheckpoints]]:
    """The run directory, locked against other runs while the block lasts, and its checkpoints.

    Of several processes the first one writes; the others have no `FinetuneRun`. Arguments and errors are those of
    `finetune`.
    """
    from ..train.run_lock import only_run

    checkpoints = FinetuneCheckpoints(out, config, now, start)
    with contextlib.ExitStack() as held:
        run = None
        if current().first:
            Path(out).mkdir(parents=True, exist_ok=True)
            if not start.locked:
                held.enter_context(only_run(Path(out)))
            run = FinetuneRun(out, task, config, source, now)
        if start.point is not None and callbacks is not None and callbacks.on_resume is not None:
            callbacks.on_resume(start.point, checkpoints.step)
        yield run, checkpoints


def train(
    task: Task,
    model: torch.nn.Module,
    data: Data,
    config: FinetuneConfig,
    callbacks: Callbacks | None = None,
    run: FinetuneRun | None = None,
    checkpoints: FinetuneCheckpoints | None = None,
) -> Best:
    """Trains the model in place and evaluates it on the way; returns the best evaluation with its weights.

    Errors are those of `Training.run` and `FinetuneCheckpoints.restore`.

    Args:
        task, model, config, callbacks: as in `finetune`.
        data: the encoded rows.
        run: writes the log; None writes none.
        checkpoints: restores the training, and saves it on the way; None does neither.
    """
    with contextlib.closing(Training(task, model, data, config, callbacks, checkpoints)) as training:
        if checkpoints is not None:
            checkpoints.restore(training)
        with contextlib.nullcontext() if run is None else run.log(training) as log:
            return training.run(log)


def interrupted(stopped: Stopped, data: Data, checkpoints: FinetuneCheckpoints) -> FinetuneResult:
    """The result of a run that was ended by a signal."""
    return FinetuneResult(
        stopped.best.history,
        stopped.best.record,
        [],
        data.dev.guess,
        checkpoints.progress.lines,
        paths=[stopped.path] if current().first else [],
        wall_seconds=checkpoints.wall_seconds,
        interrupted=stopped.signal,
    )


def result_again(
    task: Task, model: torch.nn.Module, tokenizer, dev_rows: Sequence[Row], config: FinetuneConfig, out, now: dict
) -> FinetuneResult:
    """The result of a run that has already ended; the model gets its weights.

    Raises:
        CheckpointError: the run was of another model, recipe or data, or its record is damaged.
    """
    path = Path(out) / ENDED
    ended = read_ended(out, task.metrics[0])
    check_same(path, ended["finetune"], now)
    task.configure(config)
    task.adopt(model.config)
    dev = EvaluationSet.of(task, dev_rows[: config.limit_dev], tokenizer, config.max_seqlen)
    directory = Path(out) / "model"
    best = Best.of(task.metrics[0], task.model(directory).state_dict(), ended)
    best.settle(task, dev, model)
    return FinetuneResult(
        best.history,
        best.record,
        best.predictions,
        dev.guess,
        ended["trials"],
        model_dir=directory,
        paths=[Path(out) / name for name in ended["paths"]] if current().first else [],
        wall_seconds=ended["wall_seconds"],
        diverged=best.diverged,
    )
