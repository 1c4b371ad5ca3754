"""A trained model that is to be used: its directory, what it was trained with, and its loading."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import CheckpointError, InputError
from ..hints import adapter_hint, download_hint
from ..modules.precision import in_precision
from ..text_files import read_json, read_yaml
from .config import FinetuneConfig, TaskOptions

if TYPE_CHECKING:
    from torch import nn

    from .base import Task

KEPT = "fastbert"
"""The key of a fine-tuned model's config.json under which it says what it was trained with."""


def model_directory(path: str | os.PathLike) -> Path:
    """The model directory that a path stands for: itself, or ``model/`` in a run directory. One of google-research's,
    with bert_config.json and a checkpoint, is a model directory too.

    Raises:
        InputError: there is no such directory, or no config.json in it.
        CheckpointError: there are several checkpoints beside bert_config.json.
    """
    from ..weights.reading import has_weights

    path = Path(path)
    for directory in (path / "model", path):
        if (directory / "config.json").is_file():
            return directory
    what = "a file" if path.exists() else f"nothing of that name{download_hint(path)}"
    if path.is_dir():
        what = f"a directory without config.json{adapter_hint(path) or adapter_hint(path / 'model')}"
    if (path / "bert_config.json").is_file():
        if has_weights(path):
            return path
        what = "bert_config.json without weights that are read as they are: `fastbert convert` makes one of others"
    elif Path(f"{path}.index").is_file():
        what = "a TensorFlow checkpoint: name its directory, or make one with `fastbert convert`"
    raise InputError(f"{path}: expected a model directory with config.json, or a run directory, got {what}")


def trained_with(path: str | os.PathLike, task: str) -> tuple[dict, Path]:
    """What a model was fine-tuned with, and the file that says so: config.yaml of a run, or of a model directory alone
    what its config.json keeps of it for this task; empty where there is none.

    Raises:
        InputError: no such directory, or a file that cannot be read.
    """
    file = Path(path) / "config.yaml"
    if file.is_file():
        return read_yaml(file), file
    file = model_directory(path) / "config.json"
    kept = read_json(file).get(KEPT) if file.is_file() else None
    # Who trains the model on for another task by other means takes the key along.
    return kept if isinstance(kept, dict) and kept.get("task") == task else {}, file


def kept_of(task: Task, config: FinetuneConfig) -> dict:
    """What a model's config.json keeps: what predictions depend on beside its weights."""
    names = [f.name for f in dataclasses.fields(TaskOptions) if hasattr(task, f.name)]
    options = {name: getattr(config, name) for name in ("max_seqlen", *names)}
    return {"task": task.name, **{name: value for name, value in options.items() if value is not None}}


@contextlib.contextmanager
def warnings_held() -> Iterator[list[logging.LogRecord]]:
    """While the block runs, what the package would log is kept and not shown; gives the records. A loader warns of a
    new head, which is wanted in some places and has been said before, or is an error to be told once, in others."""
    logger = logging.getLogger("fastbert")
    kept: list[logging.LogRecord] = []

    def keep(record: logging.LogRecord) -> bool:
        kept.append(record)
        return False

    logger.addFilter(keep)
    try:
        yield kept
    finally:
        logger.removeFilter(keep)


def load_trained(
    load: Callable[[Path], nn.Module], directory: Path, without_head: str = "", precision: str = "fp32"
) -> nn.Module:
    """Loads a model to use it, on the GPU if there is one; every tensor, its head's too, must be in the directory.

    Args:
        without_head: what a person can do about a model that has no head of this kind, added to the message.
        precision: as `in_precision` takes it; "int8" is computed on the CPU.

    Raises:
        InputError: a model that cannot be int8.
        BackendError: int8 needs the C++ extension, and it was not built.
        CheckpointError: a tensor is missing and would be random; the message lists those, or says how large the
            directory's head is.
    """
    with warnings_held() as warnings:  # a new head is an error here, and must be told once
        model = load(directory)
    new = model.load_report.missing
    if new:
        names = ", ".join(new[:5]) + (f", and {len(new) - 5} more" if len(new) > 5 else "")
        expected, got = f"expected a trained {type(model).__name__}", f"no weights for {names}{without_head}"
        for name, shape, own in model.load_report.mismatched[:1]:
            got = f"another head: {name} is {shape} for {own}"
            if shape[1:] == own[1:]:
                expected, got = f"{expected} with a head of size {own[0]}", f"one of size {shape[0]} ({name})"
        raise CheckpointError(f"{directory}: {expected}, got {got}")
    for record in warnings:
        logging.getLogger("fastbert").handle(record)
    return in_precision(model, precision)
