"""Writes a model as a Hugging Face directory: weights, config.json and the tokenizer's files, atomically."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from torch import Tensor, nn

from ..errors import CheckpointError
from ..files import flush, unfinished
from ..modules.linear import is_plain_tensor
from ..modules.quantized import is_quantized
from ..modules.quantized_linear import UNSAVABLE
from ..wording import dtype_name
from .names import is_computed, unwrapped_name
from .reading import SAFETENSORS
from .safetensors_format import write_safetensors

Writer: TypeAlias = Callable[[Path], Any]
"""A function that writes a file under the path that it is given."""

_VOCABULARIES = ("vocab.txt", "tokenizer.json", "vocab.json", "sentencepiece.bpe.model", "spiece.model")
TOKENIZER_FILES = (
    *_VOCABULARIES,
    *("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "merges.txt", "bpe.codes"),
)


def save_directory(
    model: nn.Module,
    directory,
    config_dict: Mapping[str, Any],
    tokenizer_source=None,
    more: Mapping[str, Writer] | None = None,
    state: Mapping[str, Tensor] | None = None,
) -> Path:
    """Writes model.safetensors, config.json and the tokenizer's files into a directory, and returns it.

    Everything is first written and flushed under temporary names, so a full disk leaves earlier files intact. If there
    is a vocabulary to write, the files of an earlier tokenizer that are not replaced are removed at the end: readers
    would take some of them for the new one's.

    Args:
        model: has Hugging Face's names; a tied tensor is written once, under its first name.
        config_dict: the content of config.json; ``architectures``, ``model_type`` and ``dtype`` are set from the model.
        tokenizer_source: a directory (or a vocab.txt) whose tokenizer files `tokenizer_writers` copies, or None.
        more: writers of further files, as in `write_all`.
        state: tensors under the model's names, to be written in place of its own.

    Raises:
        CheckpointError: a file cannot be written, or the model or the tokenizer has nothing to write.
    """
    model = _unwrapped(model)
    directory = Path(directory)
    state = tensors_of(model, state)
    floating = next((dtype_name(t.dtype) for t in state.values() if t.is_floating_point()), None)
    config = {
        **{name: value for name, value in config_dict.items() if name != "torch_dtype"},
        "architectures": [getattr(model, "architecture", type(model).__name__)],
        "model_type": config_dict.get("model_type", "bert"),
        "dtype": floating,
    }
    writers: dict[str, Writer] = {
        SAFETENSORS: lambda path: write_safetensors(state, path),
        "config.json": config_writer(config),
        **tokenizer_writers(tokenizer_source),
    }
    writers |= more or {}
    write_all(directory, writers)
    if has_vocabulary(writers):
        for name in TOKENIZER_FILES:
            if name not in writers and (directory / name).is_file():
                _remove(directory / name)
    return directory


def _remove(path: Path) -> None:
    """Removes a file. Raises CheckpointError if it cannot be removed."""
    try:
        path.unlink()
    except OSError as error:
        raise CheckpointError(
            f"{path}: expected to remove it, since it belongs to an earlier tokenizer, got: {error.strerror or error}"
        ) from error


def has_vocabulary(names: Iterable[str]) -> bool:
    """Whether the vocabulary of a tokenizer is among files of these names."""
    return not set(_VOCABULARIES).isdisjoint(names)


def _unwrapped(model: nn.Module) -> nn.Module:
    """The model inside torch.compile's and DataParallel's wrappers."""
    while True:
        inner = model._modules.get("_orig_mod") or model._modules.get("module")
        if inner is None:
            return model
        model = inner


def tensors_of(model: nn.Module, given: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """The tensors to write, each once, contiguous and on the CPU: ``given``, or the model's own.

    Raises:
        CheckpointError: a tensor is int8, sharded or on the meta device, or there are none.
    """
    if is_quantized(model):
        raise CheckpointError(f"{type(model).__name__}: {UNSAVABLE}")
    state: dict[str, Tensor] = {}
    seen: set[Any] = set()
    for name, tensor in (model.state_dict(keep_vars=True) if given is None else given).items():
        # A state dictionary has a separate tensor object for each name of a tied parameter, with the same memory.
        identity = id(tensor) if given is None else (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if identity in seen or is_computed(name):
            continue
        seen.add(identity)
        if tensor.is_meta:
            raise CheckpointError(f"{name}: expected a tensor with values to save, got one on the meta device")
        if not is_plain_tensor(tensor):
            # Shards cannot be gathered here: that needs all processes, and only this one may be calling.
            raise CheckpointError(
                f"{name}: expected a whole tensor of numbers to save, got a {type(tensor).__name__}: sharded weights "
                "are given as state_dict, gathered by torch.distributed.checkpoint.state_dict.get_model_state_dict "
                "with full_state_dict"
            )
        tensor = tensor.detach().cpu().contiguous()
        # safetensors refuses two tensors in one storage, so a view of a larger storage is copied.
        whole = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
        state[unwrapped_name(name)] = tensor if whole else tensor.clone()
    # With an untied decoder, transformers 5 reads its bias under this name and would otherwise set it to zeros.
    if "cls.predictions.decoder.weight" in state and "cls.predictions.bias" in state:
        state["cls.predictions.decoder.bias"] = state["cls.predictions.bias"].clone()
    if not state:
        raise CheckpointError(f"{type(model).__name__}: expected a model with weights to save, got none")
    return model.tensors_to_file(state) if hasattr(model, "tensors_to_file") else state


def tokenizer_files(source) -> list[Path]:
    """The existing files of a tokenizer, in a directory or given as a vocab.txt; none for None."""
    if source is None:
        return []
    source = Path(source)
    if source.is_file():
        return [source] if source.name in TOKENIZER_FILES else []
    return [source / name for name in TOKENIZER_FILES if (source / name).is_file()]


def same_files(files: Sequence[Path], others: Sequence[Path]) -> bool:
    """Whether two sets of files have the same names and bytes."""
    names, theirs = ({file.name: file for file in each} for each in (files, others))
    return names.keys() == theirs.keys() and all(
        names[name].read_bytes() == theirs[name].read_bytes() for name in names
    )


def tokenizer_writers(source) -> dict[str, Writer]:
    """Writers that copy a tokenizer's files, by name.

    They copy the files unchanged, with one exception: if only the words of a vocab.txt tell whether it is cased, the
    copied tokenizer_config.json states it, since transformers would lower-case by default.
    """
    files = {file.name: file for file in tokenizer_files(source)}
    if "vocab.txt" in files and (beside := files["vocab.txt"].with_name("tokenizer_config.json")).is_file():
        files[beside.name] = beside  # also if the vocab.txt itself was given, which is read together with it
    writers = {name: copy_writer(file) for name, file in files.items()}
    if "vocab.txt" in files and "tokenizer.json" not in files:
        from ..data.vocab_files import resolved_settings

        text = resolved_settings(files["vocab.txt"])
        if text is not None:
            writers["tokenizer_config.json"] = text_writer(text)
    return writers


def text_writer(text: str) -> Writer:
    """Writes a text."""
    return lambda path: path.write_text(text, encoding="utf-8")


def config_writer(values: Mapping[str, Any]) -> Writer:
    """Writes a configuration as JSON, in the order of its keys."""
    return text_writer(json.dumps(values, indent=2, sort_keys=True, default=str) + "\n")


def copy_writer(file: Path) -> Writer:
    """Copies a file."""
    return lambda path: path.write_bytes(file.read_bytes())


def write_all(directory: Path, writers: Mapping[str, Writer]) -> None:
    """Writes every file under a temporary name, flushes it, and renames all files when all are complete.

    On failure, the temporary files and the directories that were made for them are removed.

    Args:
        directory: made if it does not exist.
        writers: a file's name, or its path in the directory -> what writes it.

    Raises:
        CheckpointError: a file cannot be written.
    """
    partial: dict[Path, Path] = {}
    made: list[Path] = []
    path, held = directory, contextlib.ExitStack()
    try:
        homes = dict.fromkeys([directory, *((directory / name).parent for name in writers)])
        for home in homes:
            made += [place for place in (home, *home.parents) if not place.exists()]
            home.mkdir(parents=True, exist_ok=True)
        for name, write in writers.items():
            path = directory / name
            partial[path] = held.enter_context(unfinished(path))
            write(partial[path])
            flush(partial[path])
        for path, temporary in partial.items():
            os.replace(temporary, path)
        for home in homes:
            flush(home)
    except OSError as error:
        raise CheckpointError(f"{path}: expected to write it, got: {error.strerror or error}") from error
    finally:
        held.close()
        for place in sorted(made, key=lambda place: -len(place.parts)):
            with contextlib.suppress(OSError):  # not empty: the files were written
                place.rmdir()
