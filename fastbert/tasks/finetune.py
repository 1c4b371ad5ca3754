"""Fine-tuning: the machinery that every task shares. It calls the methods of `Task` and nothing else of a task."""

from __future__ import annotations

import contextlib
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
from .predict import TOKEN_BUDGET, run_model
from .runs import FinetuneRun


@dataclass(frozen=True)
class FinetuneResult:
    """What a fine-tuning came to.

    Args:
        history: a dictionary an epoch: epoch, train_loss, train_seconds, tokens_per_second, dev_loss, the metrics.
        best: the one whose first metric is the largest, the earliest of equals.
        predictions: the best epoch's, one a dev row.
        model_dir, paths: what was written; None and empty without a run directory.
    """

    history: list[dict]
    best: dict
    predictions: list
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
    on_step: Callable[[int], Any] | None = None,
    on_epoch: Callable[[dict], Any] | None = None,
) -> FinetuneResult:
    """Trains the model in place; at the end it holds the weights of its best epoch.

    Args:
        model: from ``task.model(directory)``, whose new head is drawn from torch's generator: seed it before.
        out: the run directory to make; None writes nothing.
        source: where things came from, for config.yaml.
        on_step: called after each step with the number of all steps.
        on_epoch: called with each epoch's line of the history.

    Raises:
        InputError: rows, tokenizer, lengths and model do not fit together, or the run directory exists; all this is
            found out before training starts.
    """
    train_rows, dev_rows = train_rows[: config.limit_train], dev_rows[: config.limit_dev]
    check_fit(tokenizer, model.config, config.max_seqlen)
    examples = task.encode(train_rows, tokenizer, config.max_seqlen)
    dev_examples = task.encode(dev_rows, tokenizer, config.max_seqlen)
    if not examples or not dev_examples:
        got = f"{len(examples)} training and {len(dev_examples)} dev examples"
        raise InputError(f"task {task.name}: expected rows to train and to evaluate on, got {got}")
    plan = _plan(examples, config)
    stepper = _Stepper(model, task, examples, config, sum(map(len, plan)))
    keeper = _Best(task.metrics[0])
    history = []
    with contextlib.nullcontext() if out is None else FinetuneRun(out, task, config, source or {}) as run:
        for epoch, batches in enumerate(plan, 1):
            record = {"epoch": epoch, **_train_epoch(stepper, batches, run, on_step)}
            outputs = run_model(task, model, dev_examples, TOKEN_BUDGET)
            predictions = task.decode(dev_rows, dev_examples, outputs.values)
            record |= task.metric(dev_rows, predictions)
            if outputs.loss is not None:
                record["dev_loss"] = outputs.loss
            history.append(record)
            keeper.offer(record, predictions, model)
            if run is not None:
                run.log_epoch(stepper.count, record)
            if on_epoch is not None:
                on_epoch(record)
        keeper.restore(model)
        result = FinetuneResult(history, keeper.record, keeper.predictions)
        return result if run is None else run.finish(task, result, model, tokenizer, dev_rows)


def _plan(examples: Sequence[Example], config: FinetuneConfig) -> list[list]:
    """The batches of every epoch, as example numbers."""
    lengths = [e.num_tokens for e in examples]
    sizes = {"batch_size": config.batch_size, "token_budget": config.token_budget}
    return [training_batches(lengths, seed=config.seed, epoch=epoch, **sizes) for epoch in range(config.epochs)]


def _train_epoch(stepper: _Stepper, batches: list, run: FinetuneRun | None, on_step: Callable | None) -> dict:
    """One pass over the batches; its mean loss over rows, its seconds and its rate."""
    start, tokens, rows, loss_sum = time.perf_counter(), 0, 0, 0.0
    for indices in batches:
        record = stepper.step(indices)
        tokens += record.pop("tokens")
        rows += len(indices)
        loss_sum += record["loss"] * len(indices)
        if run is not None:
            run.log_step(record)
        if on_step is not None:
            on_step(stepper.total)
    seconds = time.perf_counter() - start
    return {"train_loss": loss_sum / rows, "train_seconds": seconds, "tokens_per_second": tokens / seconds}


class _Stepper:
    """One optimiser step a batch, by the engine that pre-training uses; AdamW with a linear schedule."""

    def __init__(self, model, task: Task, examples: Sequence[Example], config: FinetuneConfig, total: int):
        from .. import optim
        from ..train.engine import LocalEngine

        self.model, self.task, self.examples, self.config, self.total = model, task, examples, config, total
        self.warmup = round(config.warmup * total) / total  # whole steps, as in transformers' schedule
        self.count = 0
        groups = optim.param_groups(model, config.weight_decay)
        optimizer = optim.AdamW(groups, lr=config.lr, eps=1e-6, correct_bias=config.correct_bias)
        self.engine = LocalEngine(model, optimizer, precision=config.precision, clip=config.clip, seed=config.seed)

    def step(self, indices: Sequence[int]) -> dict:
        """Trains on these examples; returns step, loss, grad_norm, lr and tokens."""
        from ..optim import schedules

        batch, labels = self.task.collate([self.examples[index] for index in indices])
        batch = batch.to(self.engine.device)
        labels = {name: value.to(self.engine.device) for name, value in labels.items()}
        self.model.train()
        loss = self.engine.backward(lambda: self.model(batch, **labels).loss)
        lr = self.config.lr * schedules.linear(self.count / self.total, self.warmup)
        grad_norm = self.engine.step(lr)
        self.count += 1
        return {"step": self.count, "loss": float(loss), "grad_norm": grad_norm, "lr": lr, "tokens": batch.num_tokens}


class _Best:
    """Remembers the weights of the epoch with the largest first metric."""

    def __init__(self, metric: str):
        self.metric = metric
        self.record: dict = {}
        self.predictions: list = []
        self._weights: dict[str, torch.Tensor] = {}

    def offer(self, record: dict, predictions: list, model: torch.nn.Module) -> None:
        if self.record and not record[self.metric] > self.record[self.metric]:
            return
        self.record, self.predictions = record, predictions
        self._weights = {name: value.detach().to("cpu", copy=True) for name, value in model.state_dict().items()}

    def restore(self, model: torch.nn.Module) -> None:
        model.load_state_dict(self._weights)
