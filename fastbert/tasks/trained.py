"""Finding and loading a trained model, and the options that it was trained with."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import CheckpointError, InputError
from ..hints import adapter_hint, checkpoint_hint, download_hint, inner_hint
from ..model_config import read_config_file
from ..modules.precision import in_precision
from ..text_files import read_json, read_yaml
from ..weights.loading import warnings_held
from .config import FinetuneConfig, TaskOptions

if TYPE_CHECKING:
    from torch import nn

    from .base import Task

_log = logging.getLogger("fastbert")
CONFIGS = ("config.json", "bert_config.json")
"""The names of a model's configuration; the second is google-research/bert's."""
KEPT = "fastbert"
"""The key in a fine-tuned model's config.json for the options that predictions depend on."""


def model_directory(path: str | os.PathLike) -> Path:
    """The model directory that a path stands for: itself, or ``model/`` in a run directory. A directory of
    google-research, with bert_config.json and a checkpoint, is a model directory too.

    Raises:
        InputError: there is no such directory, or it does not hold a model.
        CheckpointError: there are several checkpoints beside bert_config.json.
    """
    from ..weights.reading import has_weights

    path = Path(path)
    for directory in (path / "model", path):
        if (directory / "config.json").is_file():
            return directory
    what = "a file" if path.exists() else f"nothing of that name{download_hint(path)}"
    if path.is_dir():
        hint = adapter_hint(path) or adapter_hint(path / "model") or inner_hint(path) or checkpoint_hint(path)
        what = f"a directory without config.json{hint}"
    if (path / "bert_config.json").is_file():
        if has_weights(path):
            return path
        what = "bert_config.json without weights that are read as they are: `fastbert convert` makes one of others"
    elif Path(f"{path}.index").is_file():
        what = "a TensorFlow checkpoint: name its directory, or make one with `fastbert convert`"
    raise InputError(f"{path}: expected a model directory with config.json, or a run directory, got {what}")


def trained_with(path: str | os.PathLike, task: str) -> tuple[dict, Path]:
    """The options that a model was fine-tuned with, and the file that has them: config.yaml of a run, or in a lone
    model directory what config.json keeps for this task (`kept_of`). Empty if there are none.

    Raises:
        InputError: there is no such directory, or a file cannot be read.
    """
    file = Path(path) / "config.yaml"
    if file.is_file():
        return read_yaml(file), file
    directory = model_directory(path)
    file = next((directory / name for name in CONFIGS if (directory / name).is_file()), directory / CONFIGS[0])
    kept = read_json(file).get(KEPT) if file.is_file() else None
    # The key is copied along if the model is trained further, for another task and by another tool.
    return kept if isinstance(kept, dict) and kept.get("task") == task else {}, file


def kept_of(task: Task, config: FinetuneConfig) -> dict:
    """What a model's config.json keeps under `KEPT`: the options that predictions depend on."""
    names = [f.name for f in dataclasses.fields(TaskOptions) if hasattr(task, f.name)]
    options = {name: getattr(config, name) for name in ("max_seqlen", *names)}
    return {"task": task.name, **{name: value for name, value in options.items() if value is not None}}


# What the heads whose tensors have the same names classify.
_CLASSIFIERS = {
    "BertForSequenceClassification": "texts",
    "BertForMultipleChoice": "texts",
    "BertForTokenClassification": "tokens",
}


def load_trained(
    load: Callable[[Path], nn.Module], directory: Path, without_head: str = "", precision: str = "fp32"
) -> nn.Module:
    """Loads a model for inference, on the GPU if there is one. Every tensor, head included, must be in the directory.

    Args:
        load: loads the model of a directory.
        directory: the model directory.
        without_head: what the user can do about a model without a head of this kind, added to the message.
        precision: as in `in_precision`; "int8" is computed on the CPU.

    Raises:
        InputError: the model cannot be converted to int8.
        BackendError: int8 needs the C++ extension, which was not built.
        CheckpointError: a tensor is missing and would be random; the message lists the missing ones, or gives the size
            of the head in the directory. Or its head classifies tokens and texts are to be, or the reverse: these heads
            have tensors of the same names.
    """
    with warnings_held() as warnings:  # a new head is an error here, to be reported once
        model = load(directory)
    new = model.load_report.missing
    if new:
        names = ", ".join(new[:5]) + (f", and {len(new) - 5} more" if len(new) > 5 else "")
        expected, got = f"expected a trained {type(model).__name__}", f"no weights for {names}{without_head}"
        for name, shape, own in model.load_report.mismatched[:1]:
            got = f"another head: {name} is {shape} for {own}"
            if shape[1:] == own[1:]:
                expected, got = f"{expected} with a head of size {own[0]}", f"one of size {shape[0]} ({name})"
                told = {"id2label", "label2id", "num_labels"} & read_config_file(directory)[1].keys()
                if not told and shape[0] != 2:  # two need not be told
                    # As in checkpoints of google-research, whose labels are in the code.
                    got += f": config.json tells no number of labels, `fastbert convert {directory} NEW` adds it"
        raise CheckpointError(f"{directory}: {expected}, got {got}")
    listed, own = model.config.architectures, type(model).__name__
    named = str(listed[0]) if isinstance(listed, list) and listed else ""
    if {named, own} <= _CLASSIFIERS.keys() and _CLASSIFIERS[named] != _CLASSIFIERS[own]:
        raise CheckpointError(f"{directory}: expected a trained {own}, got a {named} by its config.json{without_head}")
    for record in warnings:
        _log.handle(record)
    return in_precision(model, precision)
