"""Checkpoints that cannot be half-written, and that are read only when they are whole.

A checkpoint is the directory ``step_N`` with ``tensors.safetensors``, ``state.json`` and ``manifest.json``, which is
written last and holds size and SHA-256 of the others. All of it is first written to ``step_N.tmp-<id>``, forced to the
disk, and then renamed. There is no pointer to the latest: a resume takes the newest directory that verifies.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from ..errors import CheckpointError

FORMAT = 1
_TENSORS, _STATE, _MANIFEST = "tensors.safetensors", "state.json", "manifest.json"
_NAME = re.compile(r"step_(\d+)")
_TEMPORARY = re.compile(r"step_\d+\.(tmp|old)-[0-9a-f]+")


def _sync(path: Path) -> None:
    """Forces a file or a directory to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write(path: Path, data: bytes) -> None:
    try:
        with open(path, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise CheckpointError(f"{path}: {len(data)} bytes could not be written: {os.strerror(error.errno)}") from error


def write_text(path: Path, text: str) -> None:
    """Writes a small file beside its final name and renames it."""
    temporary = path.with_name(f"{path.name}.tmp-{uuid.uuid4().hex}")
    try:
        _write(temporary, text.encode())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() if hasattr(hashlib, "file_digest") else _digest(file)


def _digest(file) -> str:
    """`hashlib.file_digest`, which Python 3.10 lacks."""
    digest = hashlib.sha256()
    while block := file.read(1 << 20):
        digest.update(block)
    return digest.hexdigest()


def save(
    directory: str | os.PathLike,
    step: int,
    tensors: dict[str, Tensor],
    state: dict,
    *,
    keep: int = 2,
    protect: Iterable[int] = (),
) -> Path:
    """Writes ``directory/step_N`` and removes older ones.

    Args:
        tensors: by name; written in safetensors.
        state: what JSON can hold.
        keep: how many of the newest to keep.
        protect: steps that are kept besides.

    Raises:
        CheckpointError: the disk is full or fails; checkpoints that were there before are untouched.
    """
    from .. import __version__

    directory = Path(directory)
    final = directory / f"step_{step}"
    temporary = directory / f"step_{step}.tmp-{uuid.uuid4().hex}"
    blob = safetensors.torch.save({name: value.detach().cpu().contiguous() for name, value in tensors.items()})
    text = json.dumps(state, indent=1).encode()
    try:
        try:
            temporary.mkdir(parents=True)
            files = {}
            for name, data in ((_TENSORS, blob), (_STATE, text)):
                _write(temporary / name, data)
                files[name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            manifest = {
                "format": FORMAT,
                "step": step,
                "files": files,
                "fastbert": __version__,
                "torch": str(torch.__version__),
            }
            _write(temporary / _MANIFEST, json.dumps(manifest, indent=1).encode())
            _sync(temporary)
            _put_in_place(temporary, final)
            _sync(directory)
        except OSError as error:
            raise CheckpointError(f"{final}: could not be written: {error.strerror}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    _prune(directory, keep, set(protect) | {step})
    return final


def _put_in_place(temporary: Path, final: Path) -> None:
    """Renames; a checkpoint of the same step steps aside first, and comes back if that fails."""
    if not final.exists():
        os.rename(temporary, final)
        return
    aside = final.with_name(f"{final.name}.old-{uuid.uuid4().hex}")
    os.rename(final, aside)
    try:
        os.rename(temporary, final)
    except OSError:
        os.rename(aside, final)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def _steps(directory: Path) -> list[tuple[int, Path]]:
    """Checkpoint directories, newest first."""
    if not directory.is_dir():
        return []
    found = [(int(m[1]), path) for path in directory.iterdir() if (m := _NAME.fullmatch(path.name))]
    return sorted(found, reverse=True)


def _prune(directory: Path, keep: int, protect: set[int]) -> None:
    """Removes old checkpoints, and what dead saves left behind."""
    for _, path in [entry for entry in _steps(directory)[keep:] if entry[0] not in protect]:
        shutil.rmtree(path, ignore_errors=True)
    for path in directory.iterdir():
        if _TEMPORARY.fullmatch(path.name):
            shutil.rmtree(path, ignore_errors=True)


def verify(path: str | os.PathLike) -> dict:
    """Checks every byte of a checkpoint against its manifest, which it returns.

    Raises:
        CheckpointError: naming the file, what was expected and what was got.
    """
    path = Path(path)
    try:
        manifest = json.loads((path / _MANIFEST).read_bytes())
        files, step = dict(manifest["files"]), int(manifest["step"])
        entries = [(name, int(entry["bytes"]), str(entry["sha256"])) for name, entry in files.items()]
    except FileNotFoundError:
        raise CheckpointError(f"{path}: expected a checkpoint with a {_MANIFEST}, found none") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path / _MANIFEST}: cannot be read: {error}") from error
    if manifest.get("format") != FORMAT or set(files) != {_TENSORS, _STATE} or step < 0:
        raise CheckpointError(f"{path / _MANIFEST}: expected format {FORMAT} with {_TENSORS} and {_STATE}")
    for name, size, digest in entries:
        file = path / name
        if file.is_symlink() or not file.is_file():
            raise CheckpointError(f"{file}: expected a file of {size} bytes, found none")
        got = file.stat().st_size
        if got != size:
            raise CheckpointError(f"{file}: expected {size} bytes, got {got}")
        if _sha256(file) != digest:
            raise CheckpointError(f"{file}: its bytes are not those that were saved (SHA-256 differs)")
    return manifest


def latest_valid(directory: str | os.PathLike) -> tuple[Path | None, list[tuple[Path, str]]]:
    """The newest checkpoint that verifies, and the newer ones that do not, each with the reason."""
    skipped = []
    for _, path in _steps(Path(directory)):
        try:
            verify(path)
        except CheckpointError as error:
            skipped.append((path, str(error)))
        else:
            return path, skipped
    return None, skipped


def load(path: str | os.PathLike) -> tuple[dict[str, Tensor], dict, int]:
    """Tensors, state and step of a checkpoint, after it has verified. Raises CheckpointError."""
    path = Path(path)
    manifest = verify(path)
    try:
        tensors = safetensors.torch.load_file(path / _TENSORS)
        state = json.loads((path / _STATE).read_bytes())
    except (SafetensorError, ValueError, OSError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error
    return tensors, state, manifest["step"]


def optimizer_tensors(
    optimizer: torch.optim.Optimizer, named_parameters: Sequence[tuple[str, Tensor]]
) -> tuple[dict[str, Tensor], dict]:
    """An optimiser's state by parameter name: tensors as ``optimizer.<key>.<parameter>``, the rest for JSON."""
    tensors, numbers = {}, {}
    for name, parameter in named_parameters:
        for key, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                tensors[f"optimizer.{key}.{name}"] = value
            else:
                numbers.setdefault(name, {})[key] = value
    return tensors, numbers


def restore_optimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Sequence[tuple[str, Tensor]],
    tensors: dict[str, Tensor],
    numbers: dict,
) -> None:
    """Puts back what `optimizer_tensors` took. Raises CheckpointError for a tensor of another shape."""
    by_name: dict[str, dict] = {name: dict(values) for name, values in numbers.items()}
    for full_name, value in tensors.items():
        if full_name.startswith("optimizer."):
            _, key, name = full_name.split(".", 2)
            by_name.setdefault(name, {})[key] = value
    for name, parameter in named_parameters:
        state = by_name.get(name, {})
        for key, value in state.items():
            if isinstance(value, Tensor):
                if value.dim() and value.shape != parameter.shape:
                    raise CheckpointError(
                        f"optimizer state {key} of {name} must be {tuple(parameter.shape)}, got {tuple(value.shape)}"
                    )
                state[key] = value.to(parameter.device)
        if state:
            optimizer.state[parameter] = state
