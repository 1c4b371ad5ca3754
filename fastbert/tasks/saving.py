"""Checkpoints of fine-tuning, in ``OUT/checkpoints``, written by `fastbert.train.checkpoint`.

In a search, steps are counted across its trainings. A checkpoint contains the current training (weights, moments, the
weights of its best evaluation), the result lines of the finished ones, and the weights of the best of these.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import CheckpointError
from ..hardware import default_device
from ..signals import StopRequest
from ..train import arithmetic, checkpoint
from ..train.distributed import current
from ..train.precision import float32_products
from .base import Row, Task
from .config import NEUTRAL, FinetuneConfig
from .runs import CHECKPOINTS, Start
from .training import Best, Training

MINUTES = 10.0
"""Minutes between checkpoints without ``save_every``: BERT-base's 1.8 GB cost about half a percent of that time."""
_WINNER = "winner."

_log = logging.getLogger("fastbert")


class StopAsked(Exception):
    """A signal has come, and the training is to stop."""


class Stopped(Exception):
    """A signal has ended the run.

    Args:
        signal: its name.
        path: the checkpoint, which contains everything done so far.
        best: the best evaluation so far of the current training.
    """

    def __init__(self, signal: str, path: Path, best: Best):
        super().__init__(signal)
        self.signal, self.path, self.best = signal, path, best


@dataclass
class Progress:
    """The progress of a search over several trainings; a single training is a search of one.

    Args:
        trial: the number of the current training, from 1.
        steps: the total steps of the trainings before it.
        lines: a dictionary for each of these, as in trials.jsonl.
        winner, winner_trial: the best of these, and its number; None and 0 if there is none.
        wall_seconds: the duration of the processes before this one, in seconds.
    """

    trial: int = 1
    steps: int = 0
    lines: list[dict] = field(default_factory=list)
    winner: Best | None = None
    winner_trial: int = 0
    wall_seconds: float = 0.0


def identity(
    task: Task, model: torch.nn.Module, tokenizer, train_rows: Sequence, dev_rows: Sequence, configs: Sequence
) -> dict[str, Any]:
    """What determines the result of a run, for JSON: the options of its recipes that change results, the model's
    configuration and weights, the tokenizer and the rows, the larger ones as digests.

    Args:
        model: the model before training.
        configs: the recipes of all trainings.
    """
    recipes = [{k: v for k, v in dataclasses.asdict(config).items() if k not in NEUTRAL} for config in configs]
    found: dict[str, Any] = {"task": task.name, "number of trainings": len(recipes)}
    for number, recipe in enumerate(recipes, 1):
        of_which = f" of training {number}" if len(recipes) > 1 else ""
        found |= {f"{name}{of_which}": value for name, value in recipe.items()}
    found |= {f"model's {name}": value for name, value in model.config.to_dict().items()}
    found |= {
        "model's weights": _digest_weights(model),
        "tokenizer": hashlib.sha256(tokenizer.to_str().encode()).hexdigest(),
        "training rows": _digest_rows(train_rows),
        "dev rows": _digest_rows(dev_rows),
    }
    return json.loads(json.dumps(found, default=str))


def _digest_rows(rows: Sequence[Row]) -> str:
    digest = hashlib.sha256()
    for row in rows:
        digest.update(repr(row).encode("utf-8", "surrogatepass"))
    return f"{len(rows)}, SHA-256 {digest.hexdigest()}"


def _digest_weights(model: torch.nn.Module) -> str:
    digest = hashlib.sha256()
    for name, value in model.state_dict().items():
        digest.update(f"{name} {tuple(value.shape)} {value.dtype} ".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return f"SHA-256 {digest.hexdigest()}"


def check_same(path: str | os.PathLike, saved: dict, now: dict) -> None:
    """Raises CheckpointError if the identity of a run is not that of what it would resume, naming what differs.

    Args:
        path: what it would resume, for the message.
        saved, now: both identities.
    """
    for name in {**now, **saved}:
        before, got = saved.get(name), now.get(name)
        if before != got:
            if str(before).startswith("SHA-256"):
                before, got = f"{before:.20}", f"{got:.20}"
            raise CheckpointError(
                f"{path}: expected the {name} that it was trained with, {before!s:.40}, got {got!s:.40}; go on with "
                "what it was started with, or choose another --out"
            )


class FinetuneCheckpoints:
    """Saves and restores the trainings of a run; all ranks call these methods, and the first one writes.

    In its context the first SIGINT, SIGTERM or SIGHUP ends the training with `Stopped`, as soon as the current step or
    evaluation batch is done and a checkpoint is on the disk; after the last evaluation it changes nothing. If a
    periodic checkpoint cannot be written, a warning says so, and training continues.

    Args:
        out: the run directory.
        config: how often to save, and how many checkpoints to keep.
        now: the identity of the run.
        start: the checkpoint to resume from, and when this process started.

    Raises:
        CheckpointError: the checkpoint is damaged or belongs to another run.

    Attributes:
        progress: where the run continues.
        step: the step of the checkpoint; 0 without one.
    """

    def __init__(self, out: str | os.PathLike, config: FinetuneConfig, now: dict, start: Start):
        self.directory, self.config, self.point, self._identity = Path(out) / CHECKPOINTS, config, start.point, now
        self._began = start.at
        self.progress, self.step = Progress(), 0
        self._saved: tuple[dict[str, Tensor], dict] | None = None
        self._last, self._stop = time.monotonic(), StopRequest()
        if start.point is not None:
            self._open(start.point)

    @property
    def wall_seconds(self) -> float:
        """The duration of the run so far in seconds, including earlier processes."""
        return self.progress.wall_seconds + time.perf_counter() - self._began

    @property
    def signal(self) -> str | None:
        """The name of the signal that has come, or None."""
        return self._stop.asked

    def _open(self, point: Path) -> None:
        tensors, state, self.step = checkpoint.load(point)
        if "finetune" not in state:
            raise CheckpointError(f"{point}: expected a checkpoint of fastbert finetune, got one of fastbert pretrain")
        check_same(point, state["finetune"], self._identity)
        arithmetic.warn_of_others(point, state["computed_with"], self._computed_with(), current())
        told = dict(state["progress"])
        winner = told.pop("winner")
        if winner is not None:
            weights = {name.removeprefix(_WINNER): v for name, v in tensors.items() if name.startswith(_WINNER)}
            winner = Best.of(winner["metric"], weights, winner)
        self.progress = Progress(**told, winner=winner)
        self._saved = (tensors, state) if "training" in state else None

    def _computed_with(self) -> dict:
        own: dict = {"micro-batches": self.config.accumulate}
        if self.config.precision == "fp32":
            asked = self.config.float32_matmul_precision
            own["float32 products"] = float32_products(asked, default_device())
        return arithmetic.computed_with(current()) | own

    def __enter__(self) -> FinetuneCheckpoints:
        self._stop.__enter__()
        return self

    def __exit__(self, *exception) -> None:
        self._stop.__exit__(*exception)

    def restore(self, training: Training) -> None:
        """Restores the training from the checkpoint, if that was saved during this training. Raises CheckpointError."""
        if self._saved is not None:
            training.restore(self.point, *self._saved)
            self._saved = None  # its tensors have been copied

    @contextlib.contextmanager
    def keeping(self, training: Training) -> Iterator[None]:
        """A context in which a signal saves and ends the training. Raises Stopped, or CheckpointError."""
        try:
            yield
        except StopAsked:
            path = self._save(training, last=True)
            raise Stopped(self._stop.asked or "a signal to another rank", path, training.best) from None

    def after_step(self, training: Training) -> None:
        """Saves if a checkpoint is due. Raises StopAsked if a signal has come on any rank."""
        step, every = self.progress.steps + training.stepper.count, self.config.save_every
        due = time.monotonic() - self._last >= 60 * MINUTES if every is None else step % every == 0
        # The clocks of ranks differ, so rank 0 decides for all.
        engine = training.stepper.engine
        asked, due = engine.reduce([self._stop.asked is not None, bool(due) and current().first])
        if asked:
            raise StopAsked
        if due:
            self._save(training)

    def in_evaluation(self, training: Training) -> None:
        """Raises StopAsked if a signal has come on any rank."""
        if training.stepper.engine.reduce([self._stop.asked is not None])[0]:
            raise StopAsked

    def after_training(self) -> None:
        """Saves that one of several trainings has finished, so that a resumed run does not repeat it."""
        self._write(self.progress.steps, {}, {}, None)

    def _save(self, training: Training, *, last: bool = False) -> Path:
        tensors, state = training.state()
        with training.stepper.engine.writing() as more:
            return self._write(self.progress.steps + training.stepper.count, tensors, state, more, last=last)

    def _write(self, step: int, tensors: dict[str, Tensor], state: dict, more, *, last: bool = False) -> Path:
        told = {f.name: getattr(self.progress, f.name) for f in dataclasses.fields(Progress)}
        if self.progress.winner is not None:
            weights, about = self.progress.winner.state()
            tensors = tensors | {_WINNER + name: value for name, value in weights.items()}
            told["winner"] = {**about, "metric": self.progress.winner.metric}
        told["wall_seconds"] = self.wall_seconds
        path, world = self.directory / f"step_{step}", current()
        state = {**state, "finetune": self._identity, "progress": told}
        state["computed_with"] = self._computed_with()
        try:
            if world.first:
                options = {"keep": self.config.keep, "world_size": world.size, "more": more}
                checkpoint.save(self.directory, step, tensors, state, **options)
        except CheckpointError as error:
            if last:
                raise
            _log.warning("training goes on without it: %s", error)
        self._last = time.monotonic()
        return path
