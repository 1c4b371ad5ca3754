"""A cell of a table: a pre-trained model, fine-tuned on a task with one seed; a JSON file in the cache."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .. import hardware
from ..data.tokenizer import load_tokenizer
from ..errors import InputError
from ..hardware import default_device
from ..result_files import write_json
from ..tasks.config import NEUTRAL, TaskOptions
from . import keys, locks, pretrained
from .definition import RowSpec, Study, TaskSpec, named
from .pretrained import Wanted


def _are_rows(value: object) -> bool:
    """Whether a value is a pair of counts: the rows to train on and to evaluate on."""
    return isinstance(value, list) and len(value) == 2 and all(map(keys.is_count, value))


def _is_guess(value: object) -> bool:
    return isinstance(value, dict) and all(map(keys.is_finite, value.values()))


_HOLDS = {"guess": _is_guess, "rows": _are_rows, "tokens": keys.is_finite}
# Options that are not in a cell's key. Micro-batches are in it, since their rounding and dropout change the figures.
_NEUTRAL = NEUTRAL - {"accumulate"}
# Options that say where a file has its texts and labels.
_COLUMNS = ("text_columns", "label_column", "label_columns", "label_separator")
# Fields of a task that are not in a cell's key: they change no figure, or the key has what they refer to.
_NOT_IN_KEY = ("column", "metric", "paper", "train", "dev", "finetune", "feature_finetune")


@dataclass(frozen=True)
class Cell:
    """A fine-tuning of a study, which is computed once and then found in the cache.

    Args:
        row, seed: the row and the seed of the study.
        task: the column, with this row's changes.
        model, step: the model to fine-tune, after this step of its pre-training.
        train, dev: the files; dev is None if a share of train is held out.
        key: the hash of everything that determines the figures.
        cache: the cache directory.
    """

    row: str
    seed: int
    task: TaskSpec
    model: Wanted
    step: int
    train: Path
    dev: Path | None
    key: str
    cache: Path

    @property
    def metric(self) -> str:
        """The metric in the table."""
        from ..tasks import registry

        return self.task.metric or registry.get(self.task.task).metrics[0]

    @property
    def path(self) -> Path:
        """The file of the result."""
        return self.cache / "cells" / f"{self.key}.json"

    def result(self) -> dict | None:
        """The result, or None if it is not computed yet."""
        from ..tasks import registry

        metrics = dict.fromkeys(registry.get(self.task.task).metrics, keys.is_finite)
        return keys.result_of(self.key, self.path, {"metrics": metrics, **_HOLDS})


def cell(study: Study, row: RowSpec, column: TaskSpec, seed: int, model: Wanted, step: int, cache: Path) -> Cell:
    """The cell of a row and a column. Raises InputError if a file is missing."""
    from ..tasks import beside
    from ..train.precision import float32_products

    task = study.task_of(row, column)
    train, dev = study.file(task.train), None if task.dev is None else study.file(task.dev)
    determines = {name: value for name, value in dataclasses.asdict(task).items() if name not in _NOT_IN_KEY}
    recipe = dataclasses.asdict(task.config(seed))
    named = [path for path in (train, dev) if path is not None]
    files = [*named, *(file for path in named for file in beside.existing(path))]
    determines |= {
        "model": model.key,
        "step": step if step < model.config.steps else "end",
        # Without options that are not given: a new one then leaves the results that are in the cache.
        "recipe": {name: value for name, value in recipe.items() if name not in _NEUTRAL and value is not None},
        "files": [keys.file_digest(path) for path in files],
        **keys.arithmetic(),
    }
    if recipe["precision"] == "fp32":
        products = float32_products(recipe["float32_matmul_precision"], default_device())
        determines |= {} if products == "highest" else {"float32 products": products}
    if dev is None:
        determines["held out"] = "sources"  # earlier versions held out single rows, and so other ones
    if task.train_rows is not None or dev is None:
        determines["classes"] = "of the whole file"  # earlier versions took those of the rows to train on
    if any(recipe[name] is not None for name in _COLUMNS):
        determines["columns"] = "read"  # earlier versions read the task's own columns all the same
    return Cell(row.name, seed, task, model, step, train, dev, keys.digest(determines), cache)


def rows_of(cell: Cell) -> tuple:
    """The task, with the cell's options, and the rows to train and to evaluate on.

    Raises:
        DataError: a file is damaged.
        InputError: the task has no such metric, there is no such task, or an option does not fit it.
    """
    from ..tasks import registry
    from ..tasks.batching import evenly, hold_out

    spec = cell.task
    task = registry.get(spec.task)
    if cell.metric not in task.metrics:
        raise InputError(f"task {spec.column}: metric must be one of {', '.join(task.metrics)}, got {spec.metric!r}")
    if spec.features is not None:
        _check_features(spec)
    config = spec.config(cell.seed)
    with named(f"task {spec.column}"):
        task.configure(config)
    rows, dev = _read(spec.task, task_options(config), cell.train, cell.dev)
    train = rows
    if dev is None:
        with named(f"task {spec.column}"):
            train, dev = hold_out(rows, spec.dev_share, task.sources)
    train, dev = evenly(train, spec.train_rows), evenly(dev, spec.dev_rows)
    task.learn(rows, train)
    return task, train, dev


def _check_features(spec: TaskSpec) -> None:
    from ..tasks import registry
    from ..tasks.feature_task import FeatureTask
    from ..tasks.features import LAYERS, MIX

    if not isinstance(registry.get(spec.task), FeatureTask) or spec.features not in (*LAYERS, MIX):
        raise InputError(
            f"task {spec.column}: features belong to ner and to tasks of texts and are one of "
            f"{', '.join((*LAYERS, MIX))}, got {spec.features!r} for {spec.task}"
        )


def task_options(config: TaskOptions) -> tuple[tuple[str, object], ...]:
    """The options of a task by name, on which its rows may depend, as a value that can be hashed."""
    return tuple((name, getattr(config, name)) for name in TaskOptions.__dataclass_fields__)


@functools.lru_cache(maxsize=16)
def _read(name: str, options: tuple, train: Path, dev: Path | None) -> tuple[list, list | None]:
    from ..tasks import registry
    from ..tasks.base import require_labels

    task = registry.get(name)
    task.configure(TaskOptions(**dict(options)))
    rows = task.read(train)
    require_labels(task, rows, train)
    rows = task.for_training(rows, train)
    if dev is None:
        return rows, None
    dev_rows = task.read(dev)
    require_labels(task, dev_rows, dev)
    return rows, dev_rows


def compute(cell: Cell) -> dict:
    """Fine-tunes, unless that was done before, puts the result into the cache and returns it."""
    cell.path.parent.mkdir(parents=True, exist_ok=True)
    with locks.held(cell.path):  # another study may be computing the same cell
        found = cell.result()
        if found is None:
            found = _compute(cell)
            write_json(found, cell.path)
    return found


def _compute(cell: Cell) -> dict:
    import torch

    from ..tasks.finetune import finetune
    from ..weights.loading import warnings_held
    from .machine import Clock, made_by

    clock = Clock()
    spec, directory = cell.task, cell.model.model_at(cell.step)
    pretrained.check_weights(cell.model, cell.step)
    task, train, dev = rows_of(cell)
    config = spec.config(cell.seed)
    torch.manual_seed(cell.seed)  # for the new head
    with warnings_held(), _folder(cell) as folder:
        if spec.features is not None:
            task.features, task.feature_units = spec.features, spec.feature_units
        model = task.model(directory).to(hardware.default_device())
        if spec.features is not None:
            from ..tasks.feature_files import Cached

            task.cache = Cached(model, folder)
        _set_dropout(model, spec.dropout)
        result = finetune(task, model, load_tokenizer(directory), train, dev, config)
    trained_tokens = sum(row["tokens_per_second"] * row["train_seconds"] for row in result.history)
    figures = {name: result.best[name] for name in task.metrics}
    return {
        "key": cell.key,
        "metrics": figures,
        "guess": result.guess,
        "epoch": result.best["epoch"],
        "history": [{n: row[n] for n in ("epoch", "train_loss", *task.metrics)} for row in result.history],
        "rows": [len(train), len(dev)],
        "tokens": round(trained_tokens),
        "measured": {**clock.read(), **made_by()},
    }


@contextlib.contextmanager
def _folder(cell: Cell) -> Iterator[Path]:
    """An empty directory for temporary files; removes one that a killed process left."""
    folder = cell.path.with_suffix(".unfinished")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _set_dropout(model, p: float) -> None:
    """Sets the dropout rate in all parts of a model; layers read it when they run."""
    from ..models import registry

    kind = registry.of_type(model.config.model_type, registry.ARCHITECTURES)
    for name, rate in kind.rates(p).items():
        setattr(model.config, name, rate)
    for module in model.modules():
        part = getattr(module, "dropout", None)
        if hasattr(part, "p"):
            part.p = p
