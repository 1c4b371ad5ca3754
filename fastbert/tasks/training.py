"""The training loop of fine-tuning: epochs, evaluations, the best of these, and the state to resume from."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..errors import InputError
from ..train.distributed import current
from ..train.engine import TrainingDiverged
from .base import Example, Row, Task, check_fit
from .batching import evenly, training_batches
from .config import FinetuneConfig
from .encoding import count_cut, say_if_cut
from .predict import TOKEN_BUDGET, NotFiniteError, run_model
from .results import show_cell
from .stepper import Stepper

if TYPE_CHECKING:
    from .runs import TrialLog
    from .saving import FinetuneCheckpoints

EARLY_SHARE = 0.4
"""When the early check is made, as a share of the first epoch: late enough for the model to have learned something,
early enough to stop the run and change it."""
EARLY_ROWS = 500
"""The most dev rows in the early check, enough for accuracy within about two points."""
_BEST = "best."

_log = logging.getLogger("fastbert")


@dataclass(frozen=True)
class Callbacks:
    """Functions that are called while training.

    Args:
        on_step: after each step, with the total number of steps.
        on_early: once, before half of the first epoch, with step, steps (of the epoch), rows, seconds_left (of the
            training), the metrics, and guess_NAME for each metric if the task can guess.
        on_evaluation: after each evaluation on the dev rows, with its entry in the history.
        on_resume: when a run resumes, with the path of the checkpoint and the number of steps before it.
    """

    on_step: Callable[[int], Any] | None = None
    on_early: Callable[[dict], Any] | None = None
    on_evaluation: Callable[[dict], Any] | None = None
    on_resume: Callable[[Path, int], Any] | None = None


@dataclass(frozen=True)
class EvaluationSet:
    """Rows to evaluate on, encoded for a model, and the metrics of `Task.guess` (empty if the task has none)."""

    rows: Sequence[Row]
    examples: list[Example]
    guess: dict[str, float]

    @classmethod
    def of(cls, task: Task, rows: Sequence[Row], tokenizer, max_seqlen: int) -> EvaluationSet:
        guess = task.guess(rows) if rows else None
        metrics = {} if guess is None else task.metric(rows, guess)
        return cls(rows, task.encode(rows, tokenizer, max_seqlen), metrics)

    def score(
        self, task: Task, model: torch.nn.Module, progress: Callable[[int], Any] | None = None
    ) -> tuple[dict, list]:
        """The metrics, with dev_loss if the examples have labels; and the predictions.

        Args:
            progress: see `run_model`.
        """
        outputs = run_model(task, model, self.examples, TOKEN_BUDGET, progress)
        predictions = task.decode(self.rows, self.examples, outputs.values)
        record = dict(task.metric(self.rows, predictions))
        if outputs.loss is not None:
            record["dev_loss"] = outputs.loss
        return record, predictions


@dataclass(frozen=True)
class Data:
    """The encoded rows, which all trainings of a search share.

    Args:
        train: the examples of the training rows.
        dev: the dev rows.
        early: those of them that the early check uses.
    """

    train: list[Example]
    dev: EvaluationSet
    early: EvaluationSet


def prepare(
    task: Task, model: torch.nn.Module, tokenizer, train_rows: Sequence[Row], dev_rows: Sequence[Row], config
) -> Data:
    """Encodes the rows, and checks that task, model, tokenizer and rows fit together; see `finetune` for errors."""
    task.configure(config)
    task.adopt(model.config)
    train_rows, dev_rows = train_rows[: config.limit_train], dev_rows[: config.limit_dev]
    for rows, kind in ((train_rows, "training"), (dev_rows, "dev")):
        row = next((row for row in rows if row.label is None), None)
        if row is not None:  # it would count as wrong whatever is predicted
            raise InputError(f"task {task.name}: expected a label in every {kind} row, got none in the row {row.id}")
    check_fit(task, tokenizer, model.config, config.max_seqlen)
    examples = task.encode(train_rows, tokenizer, config.max_seqlen)
    if current().first:
        cut, most = count_cut(task, examples), model.config.max_position_embeddings
        say_if_cut(cut, len(train_rows), config.max_seqlen, most, "training row")
    dev = EvaluationSet.of(task, dev_rows, tokenizer, config.max_seqlen)
    if not examples or not dev.examples:
        got = f"{len(examples)} training and {len(dev.examples)} dev examples"
        raise InputError(f"task {task.name}: expected rows to train and to evaluate on, got {got}")
    if config.token_budget is not None:  # raises InputError if a sequence is longer
        epoch_batches(examples, replace(config, epochs=1))
    early = dev
    if len(dev_rows) > EARLY_ROWS:
        early = EvaluationSet.of(task, evenly(dev_rows, EARLY_ROWS), tokenizer, config.max_seqlen)
    return Data(examples, dev, early)


def epoch_batches(examples: Sequence[Example], config: FinetuneConfig) -> list[list]:
    """The batches of every epoch, as example numbers."""
    lengths = [e.num_tokens for e in examples]
    sizes = {"batch_size": config.batch_size, "token_budget": config.token_budget}
    return [training_batches(lengths, seed=config.seed, epoch=epoch, **sizes) for epoch in range(config.epochs)]


@dataclass
class _Place:
    """The position in a training, and the sums over the steps since the last evaluation.

    Args:
        epoch: the epoch, from 1.
        batch: the number of its batches so far.
        evaluated: what `batch` was at the epoch's last evaluation.
        checked: whether the early check has been made.
        tokens, rows, loss_sum, seconds: the sums.
    """

    epoch: int = 1
    batch: int = 0
    evaluated: int = 0
    checked: bool = False
    tokens: int = 0
    rows: int = 0
    loss_sum: float = 0.0
    seconds: float = 0.0


class Training:
    """Trains a model in place, and evaluates it after each epoch and every ``config.eval_every`` steps.

    Args:
        task, model, data, config: what to train, on what, by which recipe.
        callbacks: functions that are called while training.
        checkpoints: saves the training; None saves nothing, and signals have their usual effect.

    Attributes:
        best: the best evaluation so far.
        stepper: makes the optimiser steps, and counts them.
        resumed_at: the step that it was resumed from; None if it started anew.
        wall_seconds: the duration so far in seconds, including the time before a resume.
    """

    def __init__(
        self,
        task: Task,
        model: torch.nn.Module,
        data: Data,
        config: FinetuneConfig,
        callbacks: Callbacks | None = None,
        checkpoints: FinetuneCheckpoints | None = None,
    ):
        self.task, self.model, self.data = task, model, data
        self.epochs = epoch_batches(data.train, config)
        self.stepper = Stepper(model, task, data.train, config, sum(map(len, self.epochs)))
        self.best = Best(task.metrics[0])
        self._callbacks, self._checkpoints = callbacks or Callbacks(), checkpoints
        self._log: TrialLog | None = None
        self._place = _Place()
        self._seconds_before, self._started = 0.0, time.perf_counter()
        self.resumed_at: int | None = None

    @property
    def wall_seconds(self) -> float:
        return self._seconds_before + time.perf_counter() - self._started

    def run(self, log: TrialLog | None = None) -> Best:
        """Trains to the end; returns the best evaluation with its weights. A training that diverges after an evaluation
        ends there, with a warning.

        Raises:
            Stopped: a signal has come; what has been done so far is in a checkpoint.
            TrainingDiverged, NotFiniteError: it diverged before any evaluation.
        """
        self._log = log
        try:
            with contextlib.nullcontext() if self._checkpoints is None else self._checkpoints.keeping(self):
                self._run()
        except (TrainingDiverged, NotFiniteError) as error:
            if not self.best.record:
                raise
            # What may follow tells of the last parameters, which are not kept.
            self.best.diverged = str(error).partition(";")[0]
            if current().first:
                kept = f"the evaluation of epoch {show_cell(self.best.record['epoch'])}, the best so far, is kept"
                _log.warning("%s; %s", self.best.diverged, kept)
        return self.best

    def close(self) -> None:
        """Takes back what the recipe changed of the model besides its weights."""
        self.stepper.close()

    def _run(self) -> None:
        while not self._ended():
            # A resumed training may have been stopped in either of these evaluations.
            self._check_early()
            while not self._evaluation_is_due():
                self._step(self._batches[self._place.batch])
                self._check_early()
                if not self._evaluation_is_due():
                    self._mark()
            self._evaluate()
            self._mark()

    @property
    def _batches(self) -> list[list]:
        """The batches of the current epoch."""
        return self.epochs[self._place.epoch - 1]

    def _ended(self) -> bool:
        """Whether all epochs are done, or there was nothing better for too long."""
        done, patience = self._place.epoch > len(self.epochs), self.stepper.config.patience
        if done or patience is None:
            return done
        # The scores of ranks may differ in the last bits, so rank 0 decides for all.
        engine = self.stepper.engine
        return bool(engine.reduce([self.best.waited >= patience and engine.world.first])[0])

    def _mark(self) -> None:
        if self._checkpoints is not None:
            self._checkpoints.after_step(self)

    def _step(self, indices: Sequence[int]) -> None:
        place, start = self._place, time.perf_counter()
        record = self.stepper.step(indices)
        place.seconds += time.perf_counter() - start
        place.batch += 1
        place.tokens += record.pop("tokens")
        place.rows += len(indices)
        place.loss_sum += record["loss"] * len(indices)
        if self._log is not None:
            self._log.step(record)
        if self._callbacks.on_step is not None:
            self._callbacks.on_step(self.stepper.total)

    def _score(self, rows: EvaluationSet) -> tuple[dict, list]:
        progress = None
        if self._checkpoints is not None:
            progress = lambda _: self._checkpoints.in_evaluation(self)  # noqa: E731
        return rows.score(self.task, self.model, progress)

    def _evaluation_is_due(self) -> bool:
        place, every = self._place, self.stepper.config.eval_every
        if place.batch == place.evaluated:
            return False
        return place.batch == len(self._batches) or (every is not None and self.stepper.count % every == 0)

    def _early_is_due(self) -> bool:
        place = self._place
        return not place.checked and place.epoch == 1 and place.batch == int(EARLY_SHARE * len(self._batches)) > 0

    def _check_early(self) -> None:
        if not self._early_is_due():
            return
        place, early = self._place, self.data.early
        score, _ = self._score(early)
        place.checked = True
        guess = {f"guess_{name}": value for name, value in early.guess.items()}
        left = {"seconds_left": place.seconds / (place.batch - place.evaluated) * (self.stepper.total - place.batch)}
        record = {"step": place.batch, "steps": len(self._batches), "rows": len(early.rows), **left, **score, **guess}
        if self._log is not None:
            self._log.early(record)
        if self._callbacks.on_early is not None:
            self._callbacks.on_early(record)

    def _evaluate(self) -> None:
        place, batches = self._place, len(self._batches)
        score, predictions = self._score(self.data.dev)
        ended = place.batch == batches
        record = {
            "epoch": place.epoch if ended else place.epoch - 1 + place.batch / batches,
            "step": self.stepper.count,
            "train_loss": place.loss_sum / place.rows,
            "train_seconds": place.seconds,
            "tokens_per_second": place.tokens / place.seconds,
            **score,
        }
        self.best.offer(record, predictions, self.model)
        if self._log is not None:
            self._log.evaluation(record)
        if self._callbacks.on_evaluation is not None:
            self._callbacks.on_evaluation(record)
        if ended:
            self._place = _Place(place.epoch + 1)
        else:
            self._place = _Place(place.epoch, place.batch, evaluated=place.batch, checked=place.checked)

    def state(self) -> tuple[dict[str, Tensor], dict]:
        """What `restore` needs: tensors, and values that JSON can hold; the same on every rank."""
        tensors, state = self.stepper.engine.state()
        weights, best = self.best.state()
        own = {"count": self.stepper.count, "wall_seconds": self.wall_seconds, **vars(self._place), "best": best}
        return tensors | {_BEST + name: value for name, value in weights.items()}, {**state, "training": own}

    def restore(self, path: Path, tensors: dict[str, Tensor], state: dict) -> None:
        """Restores what `state` returned. Raises CheckpointError if it belongs to another model."""
        own = dict(state["training"])
        self.stepper.engine.restore(path, tensors, state)
        self.stepper.count, self._seconds_before = own.pop("count"), own.pop("wall_seconds")
        self.resumed_at = self.stepper.count
        weights = {name.removeprefix(_BEST): value for name, value in tensors.items() if name.startswith(_BEST)}
        self.best = Best.of(self.best.metric, weights, own.pop("best"))
        self._place = _Place(**own)

    @property
    def pending(self) -> tuple[str, ...]:
        """The kinds of rows that metrics.jsonl will still get for the current step."""
        early = ("early",) if self._early_is_due() else ()
        return (*early, "dev") if self._evaluation_is_due() else early


class Best:
    """Keeps the record of every evaluation, and the weights and predictions of the best one.

    Args:
        metric: the metric by which they are compared; larger is better, and the earliest of equals is best.

    Attributes:
        history: the records of all evaluations.
        record: the best one's; empty before the first evaluation.
        predictions: the best one's for the dev rows; None after a resume, until `settle` computes them again.
        diverged: why the training ended before its last epoch, if it diverged; otherwise None.
    """

    def __init__(self, metric: str):
        self.metric = metric
        self.history: list[dict] = []
        self.record: dict = {}
        self.predictions: list | None = []
        self.diverged: str | None = None
        self._weights: dict[str, Tensor] = {}

    @classmethod
    def of(cls, metric: str, weights: dict[str, Tensor], state: dict) -> Best:
        """Makes one from what `state` returned, without predictions, whose type only their task knows."""
        best = cls(metric)
        best.history, best._weights, best.predictions = state["history"], weights, None
        best.diverged = state.get("diverged")
        best.record = next((record for record in best.history if record["epoch"] == state["epoch"]), {})
        return best

    def state(self) -> tuple[dict[str, Tensor], dict]:
        """The best weights, and values that JSON can hold."""
        diverged = {} if self.diverged is None else {"diverged": self.diverged}
        return self._weights, {"history": self.history, "epoch": self.record.get("epoch"), **diverged}

    @property
    def waited(self) -> int:
        """The number of evaluations since the best one; 0 before the first."""
        return len(self.history) - 1 - self.history.index(self.record) if self.record else 0

    def offer(self, record: dict, predictions: list, model: torch.nn.Module) -> None:
        """Adds an evaluation's record; keeps the predictions of the best so far, and its weights on the CPU."""
        self.history.append(record)
        if self.record and not record[self.metric] > self.record[self.metric]:
            return
        self.record, self.predictions = record, predictions
        self._weights = {name: value.detach().to("cpu", copy=True) for name, value in model.state_dict().items()}

    def settle(self, task: Task, dev: EvaluationSet, model: torch.nn.Module) -> None:
        """Loads the best weights into the model, and lets the task `settle` on their predictions for the dev rows."""
        model.load_state_dict(self._weights)
        if self.predictions is None:
            _, self.predictions = dev.score(task, model)
        self.predictions = task.settle(dev.rows, self.predictions, model.config)
        self.record |= task.metric(dev.rows, self.predictions)
