"""Fine-tuning: the machinery that every task shares. It calls the methods of `Task` and nothing else of a task."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ..errors import InputError
from .base import Example, Row, Task, check_fit
from .batching import training_batches
from .config import FinetuneConfig
from .predict import TOKEN_BUDGET, run_model, to_device
from .runs import FinetuneRun, TrialLog
from .world import launched

EARLY_SHARE = 0.4
"""Where in the first epoch the early check stands: late enough to have learned, early enough to stop and change."""
EARLY_ROWS = 500
"""Dev rows of the early check, at most: it answers whether anything is learned, within about two points."""


@dataclass(frozen=True)
class Callbacks:
    """What is called while training.

    Args:
        on_step: after each step, with the number of all steps.
        on_early: once, before half of the first epoch, with step, steps (of the epoch), rows, seconds_left (of the
            training), the metrics, and each metric again as guess_NAME where the task can guess.
        on_epoch: with each epoch's line of the history.
    """

    on_step: Callable[[int], Any] | None = None
    on_early: Callable[[dict], Any] | None = None
    on_epoch: Callable[[dict], Any] | None = None


@dataclass(frozen=True)
class FinetuneResult:
    """What a fine-tuning came to.

    Args:
        history: a dictionary an epoch: epoch, train_loss, train_seconds, tokens_per_second, dev_loss, the metrics.
        best: the one whose first metric is the largest, the earliest of equals.
        predictions: the best epoch's, one a dev row.
        guess: the metrics of predictions that know nothing; empty where the task has none.
        trials: a dictionary a training, where there were several (see `search`).
        model_dir, paths: what was written; None and empty without a run directory.
    """

    history: list[dict]
    best: dict
    predictions: list
    guess: dict[str, float] = field(default_factory=dict)
    trials: list[dict] = field(default_factory=list)
    model_dir: Path | None = None
    paths: list[Path] = field(default_factory=list)


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
    """Trains the model in place; at the end it holds the weights of its best epoch.

    Args:
        model: from ``task.model(directory)``, whose new head is drawn from torch's generator: seed it before.
        out: the run directory to make; None writes nothing.
        source: where things came from, for config.yaml.

    Raises:
        InputError: rows, tokenizer, lengths and model do not fit together, or the run directory exists; all this is
            found out before training starts.
    """
    data = prepare(task, model, tokenizer, train_rows, dev_rows, config)
    first = launched().first  # of several processes one writes
    run = FinetuneRun(out, task, config, source or {}) if out is not None and first else None
    with contextlib.nullcontext() if run is None else run.log() as log:
        best = train(task, model, data, config, log, callbacks)
    best.settle(task, data.dev.rows, model)
    result = FinetuneResult(best.history, best.record, best.predictions, data.dev.guess)
    if run is None:
        return result
    return run.finish(task, result, model, tokenizer, data.dev.rows)


@dataclass(frozen=True)
class EvaluationSet:
    """Rows to evaluate on, ready for a model, and the metrics of knowing nothing (empty where a task has none)."""

    rows: Sequence[Row]
    examples: list[Example]
    guess: dict[str, float]

    @classmethod
    def of(cls, task: Task, rows: Sequence[Row], tokenizer, max_seqlen: int) -> EvaluationSet:
        guess = task.guess(rows) if rows else None
        metrics = {} if guess is None else task.metric(rows, guess)
        return cls(rows, task.encode(rows, tokenizer, max_seqlen), metrics)

    def score(self, task: Task, model: torch.nn.Module) -> tuple[dict, list]:
        """The metrics, with dev_loss where the examples have labels; and the predictions."""
        outputs = run_model(task, model, self.examples, TOKEN_BUDGET)
        predictions = task.decode(self.rows, self.examples, outputs.values)
        record = dict(task.metric(self.rows, predictions))
        if outputs.loss is not None:
            record["dev_loss"] = outputs.loss
        return record, predictions


@dataclass(frozen=True)
class Data:
    """What every training on the same rows shares."""

    train: list[Example]
    dev: EvaluationSet
    early: EvaluationSet


def prepare(
    task: Task, model: torch.nn.Module, tokenizer, train_rows: Sequence[Row], dev_rows: Sequence[Row], config
) -> Data:
    """Encodes the rows, after all checks of what could not fit; see `finetune` for the errors."""
    task.configure(config)
    task.adopt(model.config)
    train_rows, dev_rows = train_rows[: config.limit_train], dev_rows[: config.limit_dev]
    check_fit(tokenizer, model.config, config.max_seqlen)
    examples = task.encode(train_rows, tokenizer, config.max_seqlen)
    dev = EvaluationSet.of(task, dev_rows, tokenizer, config.max_seqlen)
    if not examples or not dev.examples:
        got = f"{len(examples)} training and {len(dev.examples)} dev examples"
        raise InputError(f"task {task.name}: expected rows to train and to evaluate on, got {got}")
    if config.token_budget is not None:  # a sequence may have no room in it
        plan(examples, dataclasses.replace(config, epochs=1))
    early = dev
    if len(dev_rows) > EARLY_ROWS:
        # Spread over the file: many are sorted by source or by label.
        chosen = [dev_rows[i * len(dev_rows) // EARLY_ROWS] for i in range(EARLY_ROWS)]
        early = EvaluationSet.of(task, chosen, tokenizer, config.max_seqlen)
    return Data(examples, dev, early)


def plan(examples: Sequence[Example], config: FinetuneConfig) -> list[list]:
    """The batches of every epoch, as example numbers."""
    lengths = [e.num_tokens for e in examples]
    sizes = {"batch_size": config.batch_size, "token_budget": config.token_budget}
    return [training_batches(lengths, seed=config.seed, epoch=epoch, **sizes) for epoch in range(config.epochs)]


def train(
    task: Task,
    model: torch.nn.Module,
    data: Data,
    config: FinetuneConfig,
    log: TrialLog | None = None,
    callbacks: Callbacks | None = None,
) -> Best:
    """Trains the model in place and evaluates it after each epoch; returns the best epoch with its weights."""
    epochs = plan(data.train, config)
    stepper = _Stepper(model, task, data.train, config, sum(map(len, epochs)))
    watch = _Watch(stepper, log, callbacks or Callbacks())
    best = Best(task.metrics[0])
    for epoch, batches in enumerate(epochs, 1):
        early_at = int(EARLY_SHARE * len(batches)) if epoch == 1 else 0
        record = {"epoch": epoch, **_train_epoch(stepper, batches, watch, early_at, data.early)}
        score, predictions = data.dev.score(task, model)
        record |= score
        best.offer(record, predictions, model)
        watch.epoch(record)
    return best


def _train_epoch(stepper: _Stepper, batches: list, watch: _Watch, early_at: int, early: EvaluationSet) -> dict:
    """One pass over the batches; its mean loss over rows, its seconds and its rate.

    Args:
        early_at: after so many steps the early check is made; 0 for none.
    """
    tokens, rows, loss_sum, seconds = 0, 0, 0.0, 0.0
    for number, indices in enumerate(batches, 1):
        start = time.perf_counter()
        record = stepper.step(indices)
        seconds += time.perf_counter() - start
        tokens += record.pop("tokens")
        rows += len(indices)
        loss_sum += record["loss"] * len(indices)
        watch.step(record)
        if number == early_at:
            score, _ = early.score(stepper.task, stepper.model)
            guess = {f"guess_{name}": value for name, value in early.guess.items()}
            left = {"seconds_left": seconds / number * (stepper.total - number)}
            watch.early({"step": number, "steps": len(batches), "rows": len(early.rows), **left, **score, **guess})
    return {"train_loss": loss_sum / rows, "train_seconds": seconds, "tokens_per_second": tokens / seconds}


class _Watch:
    """Tells the log and the callbacks."""

    def __init__(self, stepper: _Stepper, log: TrialLog | None, callbacks: Callbacks):
        self._stepper, self._log, self._callbacks = stepper, log, callbacks

    def step(self, record: dict) -> None:
        if self._log is not None:
            self._log.step(record)
        if self._callbacks.on_step is not None:
            self._callbacks.on_step(self._stepper.total)

    def early(self, record: dict) -> None:
        if self._log is not None:
            self._log.early(record)
        if self._callbacks.on_early is not None:
            self._callbacks.on_early(record)

    def epoch(self, record: dict) -> None:
        if self._log is not None:
            self._log.epoch(self._stepper.count, record)
        if self._callbacks.on_epoch is not None:
            self._callbacks.on_epoch(record)


class _Stepper:
    """One optimiser step a batch, by the engine that pre-training uses; AdamW with a linear schedule.

    Of several processes each takes every so many-th row of a batch; losses are weighted by their share of its labels.
    """

    def __init__(self, model, task: Task, examples: Sequence[Example], config: FinetuneConfig, total: int):
        from .. import optim
        from .world import make_engine

        self.model, self.task, self.examples, self.config, self.total = model, task, examples, config, total
        self.warmup = round(config.warmup * total) / total  # whole steps, as in transformers' schedule
        self.count = 0
        groups = optim.param_groups(model, config.weight_decay)
        optimizer = optim.AdamW(groups, lr=config.lr, eps=1e-6, correct_bias=config.correct_bias)
        self.engine = make_engine(model, optimizer, config)

    def step(self, indices: Sequence[int]) -> dict:
        """Trains on these examples; returns step, loss, grad_norm, lr and tokens."""
        from ..optim import schedules

        engine = self.engine
        own = indices[min(engine.world.rank, len(indices) - 1) :: engine.world.size]
        batch, labels = self.task.collate([self.examples[index] for index in own])
        batch = batch.to(engine.device)
        labels = to_device(labels, engine.device)
        self.model.train()
        weight, tokens = 1.0, batch.num_tokens
        if engine.world.size > 1:
            # A batch with fewer rows than there are processes leaves some with a row that does not count.
            count = _targets(labels, len(own)) if engine.world.rank < len(indices) else 0
            total, tokens = engine.reduce([count, tokens if count else 0])
            weight, tokens = count / max(total, 1), int(tokens)
        loss = engine.backward(lambda: engine.forward(batch, **labels).loss * weight)
        lr = self.config.lr * schedules.linear(self.count / self.total, self.warmup)
        grad_norm = engine.step(lr)
        self.count += 1
        (loss,) = engine.reduce([float(loss)])
        return {"step": self.count, "loss": loss, "grad_norm": grad_norm, "lr": lr, "tokens": tokens}


def _targets(labels: dict[str, Any], rows: int) -> int:
    """How many labels a loss is the mean over: of classes of tokens those that count, else one a row."""
    values = labels.get("labels")
    if values is None or values.is_floating_point():
        return rows
    return int((values != -100).sum())


class Best:
    """Remembers every epoch's record, and the weights of the one with the largest first metric."""

    def __init__(self, metric: str):
        self.metric = metric
        self.history: list[dict] = []
        self.record: dict = {}
        self.predictions: list = []
        self._weights: dict[str, torch.Tensor] = {}

    def offer(self, record: dict, predictions: list, model: torch.nn.Module) -> None:
        self.history.append(record)
        if self.record and not record[self.metric] > self.record[self.metric]:
            return
        self.record, self.predictions = record, predictions
        self._weights = {name: value.detach().to("cpu", copy=True) for name, value in model.state_dict().items()}

    def settle(self, task: Task, rows: Sequence[Row], model: torch.nn.Module) -> None:
        """Puts the best weights back, and lets the task take what it needs from their predictions of the dev rows."""
        model.load_state_dict(self._weights)
        self.predictions = task.settle(rows, self.predictions, model.config)
        self.record |= task.metric(rows, self.predictions)
