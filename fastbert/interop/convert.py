"""Converting models: from any format in which BERTs are published to those that other software reads."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import InputError
from ..files import check_new
from ..weights import saving
from ..weights.reading import PICKLE
from ..wording import dtype_name
from .convert_sentence import heads_of, parts_beside, write_sentence_transformers
from .convert_source import Source, check_there, read_model
from .convert_tensorflow import write_tensorflow

FORMATS = ("safetensors", "pickle", "tf1", "onnx", "sentence-transformers")


def convert(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    to: str = "safetensors",
    config: str | os.PathLike[str] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Source:
    """Reads a model and writes it in another format; the values of tensors do not change.

    Args:
        source: a Hugging Face directory (safetensors, pickle, sharded or whole), a directory with a TensorFlow
            checkpoint, its prefix (``.../bert_model.ckpt``), or one file of weights.
        target: the directory to write, or the file for "onnx".
        to: one of `FORMATS`.
        config: the configuration file, if it is not beside the weights.
        options: further keyword arguments of the format's writer, such as ``pooling``.

    Returns:
        the model that was read, and what of the source was not written.

    Raises:
        InputError: there is no configuration, or it is not supported; or the directory to write is not empty.
        CheckpointError: weights are missing or damaged, or the format cannot contain them; then nothing is written.
    """
    if to not in FORMATS:
        raise InputError(f"a format must be one of {', '.join(FORMATS)}, got {to!r:.50}")
    if to != "onnx":
        if Path(target).suffix == ".onnx":
            raise InputError(f"{target}: expected a directory to write as {to}, got an ONNX file's name: add --to onnx")
        check_there(Path(source))  # first: if source and target were swapped, check_new would complain about the model
        check_new(target)
    found = read_model(source, config)
    beside = heads_of(found.model) if to == "sentence-transformers" else parts_beside(found.directory)
    found = replace(found, left_out=beside)
    _writer(to)(found, Path(target), **(options or {}))
    return found


def _writer(to: str) -> Callable[..., None]:
    if to == "onnx":
        from .convert_onnx import write_onnx

        return write_onnx
    if to == "sentence-transformers":
        return write_sentence_transformers
    return {"safetensors": _write_safetensors, "pickle": _write_pickle, "tf1": write_tensorflow}[to]


def _write_safetensors(found: Source, target: Path) -> None:
    """Writes a Hugging Face directory."""
    saving.save_directory(found.model, target, found.model.config.to_dict(), found.tokenizer)


def _write_pickle(found: Source, target: Path) -> None:
    """Writes a Hugging Face directory with a pickle instead of safetensors."""
    model = found.model
    state = saving.tensors_of(model)
    # Older releases of transformers expect all names of a tied tensor.
    names = {id(p): state[n] for n, p in model.state_dict(keep_vars=True).items() if n in state}
    whole = {n: names[id(p)] for n, p in model.state_dict(keep_vars=True).items() if id(p) in names}
    dtype = dtype_name(next(model.parameters()).dtype)
    config = {**model.config.to_dict(), "architectures": [type(model).__name__], "torch_dtype": dtype}
    writers = {PICKLE: lambda path: _save_pickle(whole, path), "config.json": saving.config_writer(config)}
    saving.write_all(target, {**writers, **saving.tokenizer_writers(found.tokenizer)})


def _save_pickle(state: Mapping[str, Tensor], path: Path) -> None:
    try:
        with path.open("wb") as file:
            torch.save(state, file)
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):  # on a full disk, torch raises an error of its own
            raise error.__context__ from None
        raise
