"""Reads the weight files of a Hugging Face directory into a dictionary of tensors; nothing in them is trusted."""

from __future__ import annotations

import glob
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import CheckpointError
from ..hints import adapter_hint, checkpoint_hint, inner_hint
from ..signals import held_signals
from ..text_files import read_json
from .foreign_names import from_deepspeed, from_tensorflow, is_weight
from .tensor_bundle import read_bundle

SAFETENSORS = "model.safetensors"
PICKLE = "pytorch_model.bin"
_MAX_SHARDS = 4096
_MAX_TENSORS = 1_000_000
_OTHER_FRAMEWORKS = ("*.ckpt*.meta", "*.ckpt*.data-*", "checkpoint", "tf_model.h5", "flax_model.msgpack")
# The keys under which trainers save a model's tensors: NVIDIA's "model", DeepSpeed's "module", and Lightning's.
_CONTAINERS = ("model", "module", "state_dict", "model_state_dict")
# The end of the names in a TensorFlow 2 checkpoint, which are paths through its objects.
_OBJECT = "/.ATTRIBUTES/VARIABLE_VALUE"
# The beginning of the three-line text that a clone without Git LFS has in place of a large file.
_POINTER = b"version https://git-lfs.github.com"


def read_state_dict(directory) -> dict[str, Tensor]:
    """Reads the tensors of a Hugging Face directory, on the CPU, under the names that they have in its files.

    Reads the first that exists of model.safetensors, model.safetensors.index.json with its shards, pytorch_model.bin,
    pytorch_model.bin.index.json with its shards, and a single TensorFlow 1 checkpoint (``*.ckpt*.index``), whose names
    are converted to Hugging Face's. A single file is read by `read_weights_file`. Pickled files are read with
    ``weights_only=True``.

    Raises:
        CheckpointError: there are no weights, a file is damaged, the name of a shard leads out of the directory, a
            pickle has other objects than tensors, the weights are TensorFlow 2's or Flax's, or there is a PEFT adapter
            beside them.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise CheckpointError(f"{directory}: expected a directory with {SAFETENSORS} or {PICKLE}, found no directory")
    found = _find_weights(directory)
    if found is not None and adapter_hint(directory):
        # transformers would apply it, so without it the results would be those of another model.
        raise CheckpointError(
            f"{directory}: expected the weights of a model alone, got a PEFT adapter beside them: remove "
            "adapter_config.json if it is merged into them already; else merge it with peft's `merge_and_unload()` and "
            "save the result in another directory"
        )
    if found is not None:
        return read_weights_file(found)
    for pattern in _OTHER_FRAMEWORKS:
        found = next(directory.glob(pattern), None)
        if found is not None:
            raise CheckpointError(
                f"{found}: expected {SAFETENSORS}, {PICKLE} or the .index and .data files of a TensorFlow 1 checkpoint"
            )
    hint = adapter_hint(directory) or checkpoint_hint(directory) or inner_hint(directory)
    raise CheckpointError(f"{directory}: expected {SAFETENSORS} or {PICKLE}, found neither{hint}")


def has_weights(directory: Path) -> bool:
    """Whether `read_state_dict` finds weights in a directory. Raises CheckpointError as `_find_tensorflow`."""
    return _find_weights(directory) is not None


def _find_weights(directory: Path) -> Path | None:
    """The file of weights in a directory, the index of its shards, or the prefix of its TensorFlow 1 checkpoint."""
    names = [f"{name}{end}" for name in (SAFETENSORS, PICKLE) for end in ("", ".index.json")]
    found = next((directory / name for name in names if (directory / name).is_file()), None)
    return _find_tensorflow(directory) if found is None else found


def _find_tensorflow(directory: Path) -> Path | None:
    """The prefix of the TensorFlow 1 checkpoint in a directory; None if there is none.

    Raises:
        CheckpointError: there are several.
    """
    found = sorted(directory.glob("*.ckpt*.index"))
    if len(found) > 1:
        names = ", ".join(path.name for path in found[:5])
        raise CheckpointError(
            f"{directory}: expected one TensorFlow checkpoint, got {names}: "
            f"`fastbert convert {found[0].with_suffix('')} NEW` makes a model directory of one"
        )
    return found[0].with_suffix("") if found else None


def read_weights_file(path) -> dict[str, Tensor]:
    """Reads the tensors of a file, of the shards that an index names, or of a TensorFlow 1 checkpoint given by its
    prefix or by one of its files.

    A pickle may have them under "model", "module", "state_dict" or "model_state_dict", as trainers save them.
    """
    path = Path(path)
    prefix = path.with_suffix("") if path.suffix.startswith((".index", ".data-", ".meta")) else path
    index = prefix.with_name(f"{prefix.name}.index")
    if index.is_file():
        for file in (index, *sorted(prefix.parent.glob(f"{glob.escape(prefix.name)}.data-*"))):
            _refuse_pointer(file)
        held = read_bundle(prefix, is_weight)
        newer = next((name for name in held if name.endswith(_OBJECT)), None)
        if newer is not None:
            raise CheckpointError(f"{index}: expected names of TensorFlow 1's, got TensorFlow 2's, {newer:.200}")
        return from_tensorflow(held)
    state = _read_shards(path.parent, path) if path.name.endswith(".index.json") else _read_file(path, unwrap=True)
    try:
        return from_deepspeed(state)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error


def _read_file(path: Path, unwrap: bool = False) -> dict[str, Tensor]:
    state = _read_safetensors(path) if path.suffix == ".safetensors" else _read_pickle(path, unwrap)
    if len(state) > _MAX_TENSORS:
        raise CheckpointError(f"{path}: expected at most {_MAX_TENSORS} tensors, got {len(state)}")
    return state


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    # The format checks every offset against the file's size, so it cannot claim more memory than the file has.
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    _refuse_pointer(path)
    try:
        # The library would turn an exception from a signal handler into an error about the file. Before version 0.6 it
        # creates tensors on torch's default device, which may be the meta device.
        with held_signals(), torch.device("cpu"):
            return load_file(path)
    except (SafetensorError, OSError, ValueError, KeyError, RuntimeError) as error:
        raise CheckpointError(f"{path}: expected a safetensors file, got one that cannot be read: {error}") from error


def _read_pickle(path: Path, unwrap: bool) -> dict[str, Tensor]:
    # CVE-2025-32434: before 2.6, weights_only=True could still run code of the file.
    if torch.__version__ < (2, 6):
        raise CheckpointError(f"{path}: reading a pickled checkpoint safely needs torch 2.6, got {torch.__version__}")
    _refuse_pointer(path)
    size = path.stat().st_size
    _check_zip(path, size)
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle may raise nearly any type
        raise CheckpointError(
            f"{path}: expected a file of tensors, got one that is damaged or holds other objects: {_reason(error):.200}"
        ) from error
    if not isinstance(state, dict):
        raise CheckpointError(f"{path}: expected a dictionary of tensors, got {type(state).__name__}")
    if unwrap:
        state = _unwrapped(path, state)
    return {_check_name(path, name): _check_tensor(path, name, value, size) for name, value in state.items()}


def _reason(error: Exception) -> str:
    """The first line of torch's message; for a refused pickle, what was refused. The rest of that message advises to
    read the file in a way that runs its code."""
    text = str(error)
    # For a module that torch always refuses, such as os, the message does not have these words.
    text = text.partition("WeightsUnpickler error:")[2] or text
    lines = [line.strip() for line in text.splitlines() if line.strip() and "weights_only" not in line]
    return lines[0].partition(" Please use ")[0] if lines else type(error).__name__


def _refuse_pointer(path: Path) -> None:
    """Raises CheckpointError for a pointer of Git LFS in the place of a file."""
    try:
        with path.open("rb") as file:
            begins = file.read(len(_POINTER))
    except OSError:  # the error is raised when it is read
        return
    if begins == _POINTER:
        raise CheckpointError(f"{path}: expected weights, got a pointer of Git LFS to them: run `git lfs pull` there")


def _unwrapped(path: Path, saved: dict) -> dict:
    """The model's tensors in a trainer's checkpoint."""
    state = next((saved[name] for name in _CONTAINERS if isinstance(saved.get(name), dict)), saved)
    tensors = [value for value in state.values() if isinstance(value, Tensor)]
    if not tensors:
        keys = ", ".join(str(key) for key in list(state)[:5]) or "no keys"
        raise CheckpointError(
            f"{path}: expected tensors of a model, or a dictionary of them under {', '.join(_CONTAINERS)}, got "
            f"{keys:.200}"
        )
    if not any(tensor.numel() for tensor in tensors):
        raise CheckpointError(
            f"{path}: expected whole weights, got empty ones: those of DeepSpeed's ZeRO stage 3 are in shards, of "
            "which its zero_to_fp32.py makes one file"
        )
    return state


def _check_zip(path: Path, size: int) -> None:
    """Raises CheckpointError if records would unpack to more than the file's size: torch.save does not compress, so
    that would be a zip bomb."""
    try:
        if not zipfile.is_zipfile(path):
            return
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(record.file_size for record in archive.infolist())
    except Exception as error:  # with a damaged archive, zipfile may raise nearly any type
        raise CheckpointError(f"{path}: expected a file of torch.save, got a damaged archive: {error}") from error
    if unpacked > size:
        raise CheckpointError(f"{path}: expected at most the file's {size} bytes of records, got {unpacked}")


def _check_name(path: Path, name: Any) -> str:
    if not isinstance(name, str):
        raise CheckpointError(f"{path}: expected names of tensors, got a key of type {type(name).__name__}")
    return name


def _check_tensor(path: Path, name: str, value: Any, size: int) -> Tensor:
    if not isinstance(value, Tensor) or value.layout is not torch.strided or value.is_quantized:
        raise CheckpointError(f"{path}: expected {name!r:.100} to be a dense tensor, got {type(value).__name__}")
    # A view with stride 0 can have any shape over a few bytes, and a copy of it would need any amount of memory.
    if value.numel() * value.element_size() > size:
        raise CheckpointError(
            f"{path}: expected {name!r:.100} to be no larger than the file, got shape {tuple(value.shape)}"
        )
    return value.detach()


def _read_shards(directory: Path, index: Path) -> dict[str, Tensor]:
    weight_map = _read_index(index)
    by_shard: dict[str, list[str]] = {}
    for name, shard in weight_map.items():
        by_shard.setdefault(shard, []).append(name)
    if len(by_shard) > _MAX_SHARDS:
        raise CheckpointError(f"{index}: expected at most {_MAX_SHARDS} shards, got {len(by_shard)}")
    paths = {shard: _shard_path(directory, index, shard) for shard in by_shard}
    state: dict[str, Tensor] = {}
    for shard, names in by_shard.items():
        held = _read_file(paths[shard])
        absent = [name for name in names if name not in held]
        if absent:
            raise CheckpointError(
                f"{paths[shard]}: expected the {len(names)} tensors that {index.name} lists, got none named {absent[0]}"
            )
        state.update((name, held[name]) for name in names)
    return state


def _read_index(index: Path) -> dict[str, str]:
    weight_map = read_json(index, raises=CheckpointError).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise CheckpointError(f"{index}: expected a weight_map from names of tensors to names of files, found none")
    return weight_map


def _shard_path(directory: Path, index: Path, shard: str) -> Path:
    """The path of a shard, whose name must be that of a plain file in the index's own directory and format."""
    suffix = Path(index.name.removesuffix(".index.json")).suffix
    plain = shard == Path(shard).name and "\\" not in shard and "\0" not in shard and ":" not in shard
    if not plain or not shard.endswith(suffix):
        raise CheckpointError(f"{index}: expected names of {suffix} files in its own directory, got {shard!r:.200}")
    path = directory / shard
    if not path.is_file():
        raise CheckpointError(f"{index}: expected the shard {shard}, found no such file")
    home, target = directory.resolve(), path.resolve()
    # The hub's cache links the files of each snapshot, those in folders of it too, to its own blobs.
    roots = [home, *(place.parent / "blobs" for place in home.parents if place.name == "snapshots")]
    if not any(target.is_relative_to(root) for root in roots):
        raise CheckpointError(f"{index}: expected the shard {shard} in its own directory, got a link out of it")
    return path
