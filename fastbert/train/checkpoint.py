"""Checkpoints that are written completely or not at all, and verified before they are read.

A checkpoint is the directory ``step_N`` with ``weights.safetensors``, ``optimizer.safetensors``, ``state.json`` and
``manifest.json``, which is written last and holds size and SHA-256 of all others. Everything is first written to
``step_N.tmp-<id>``, forced to the disk, and then renamed. A checkpoint that is written again is kept as
``step_N.old-<id>`` until the new one is on the disk; one that is removed is first renamed to ``step_N.gone-<id>``.
Going back to an older checkpoint renames the newer ones to ``step_N.left-<id>``, which only the user removes.
There is no pointer to the latest: a resume takes the newest directory that verifies. One process writes to a directory;
any number may read.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

from ..errors import CheckpointError
from ..files import flush, put_in_place, sha256
from ..signals import held_signals
from .tensor_file import write_bytes, write_tensors

_log = logging.getLogger("fastbert")

_WEIGHTS, _OPTIMIZER = "weights.safetensors", "optimizer.safetensors"
_STATE, _MANIFEST = "state.json", "manifest.json"
FORMAT = 2
_OF_OPTIMIZER = "optimizer."
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(?:/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")
_NAME = re.compile(r"step_(\d+)")
_ASIDE = re.compile(r"step_(\d+)\.old-[0-9a-f]+")
_LEFTOVER = re.compile(r"step_\d+\.(tmp|old|gone)-[0-9a-f]+")


def save(
    directory: str | os.PathLike,
    step: int,
    tensors: dict[str, Tensor],
    state: dict,
    *,
    keep: int = 2,
    protect: Iterable[int] = (),
    world_size: int = 1,
    launch: str | None = None,
    more: Callable[[Path], None] | None = None,
) -> Path:
    """Writes ``directory/step_N`` and removes older ones.

    Args:
        directory: the directory of all checkpoints, created if it does not exist.
        step: N.
        tensors: by name; those named ``optimizer.*`` go to a file of their own.
        state: values that JSON can hold.
        keep: how many of the newest checkpoints to keep.
        protect: steps whose checkpoints are kept in addition.
        world_size: the number of processes in the training, for the manifest.
        launch: the start of a launcher that the training belongs to, for the manifest.
        more: called with the checkpoint's directory, to write further files, which the manifest then lists too.

    Returns:
        the checkpoint.

    Raises:
        CheckpointError: the disk is full or fails; existing checkpoints are untouched.
    """
    from .. import __version__

    directory = Path(directory)
    final = directory / f"step_{step}"
    temporary = directory / f"step_{step}.tmp-{uuid.uuid4().hex}"
    text = json.dumps(state, indent=1).encode()
    try:
        try:
            if not directory.is_dir():
                directory.mkdir(parents=True)
                for above in (directory.parent, directory.parent.parent):
                    flush(above)
            _bring_back(directory)
            temporary.mkdir()
            files = _write_tensors(temporary, tensors) | {_STATE: write_bytes(temporary / _STATE, text)}
            if more is not None:
                more(temporary)
                files |= _list(temporary, set(files))
            manifest = {
                "format": FORMAT,
                "step": step,
                "world_size": world_size,
                "files": files,
                "fastbert": __version__,
                "torch": str(torch.__version__),
            }
            if launch is not None:
                manifest["launch"] = launch
            write_bytes(temporary / _MANIFEST, json.dumps(manifest, indent=1).encode())
            flush(temporary)
            # An older one of the same step is set aside here, and removed by pruning.
            put_in_place(temporary, final, final.with_name(f"{final.name}.old-{uuid.uuid4().hex}"))
            flush(directory)
        except OSError as error:
            size = sum(value.numel() * value.element_size() for value in tensors.values()) + len(text)
            raise CheckpointError(f"{final}: {size} bytes could not be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    with contextlib.suppress(OSError):  # the checkpoint is there; the next save prunes again
        _prune(directory, keep, set(protect) | {step})
    return final


def _write_tensors(directory: Path, tensors: dict[str, Tensor]) -> dict[str, dict]:
    """Writes both files in parallel: computing the SHA-256 of one after the other is slower than a fast disk."""
    parts: dict[str, dict[str, Tensor]] = {_WEIGHTS: {}, _OPTIMIZER: {}}
    for name, value in tensors.items():
        parts[_OPTIMIZER if name.startswith(_OF_OPTIMIZER) else _WEIGHTS][name] = value
    with ThreadPoolExecutor(len(parts)) as pool:
        entries = {name: pool.submit(write_tensors, directory / name, part) for name, part in parts.items()}
    return {name: entry.result() for name, entry in entries.items()}


def _list(directory: Path, known: set[str]) -> dict[str, dict]:
    """The manifest's entries for files not in ``known``, which are forced to the disk with their directories."""
    entries = {}
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if name not in known:
            flush(path)
            if path.is_file():
                entries[name] = {"bytes": path.stat().st_size, "sha256": sha256(path)}
    return entries


def _bring_back(directory: Path) -> None:
    """Restores a checkpoint that was set aside by a save that died between its two renames."""
    for path in directory.iterdir():
        if (match := _ASIDE.fullmatch(path.name)) and not (final := directory / f"step_{match[1]}").exists():
            os.rename(path, final)


def _steps(directory: Path, name: re.Pattern = _NAME) -> list[tuple[int, Path]]:
    """Checkpoint directories, newest first."""
    if not directory.is_dir():
        return []
    found = [(int(m[1]), path) for path in directory.iterdir() if (m := name.fullmatch(path.name))]
    return sorted(found, reverse=True)


def _prune(directory: Path, keep: int, protect: set[int]) -> None:
    """Removes old checkpoints, and what interrupted saves left behind."""
    for step, path in _steps(directory)[keep:]:
        if step not in protect:
            # Renamed first, so that an interrupted removal does not look like a damaged checkpoint.
            os.rename(path, path.with_name(f"{path.name}.gone-{uuid.uuid4().hex}"))
    for path in list(directory.iterdir()):
        if _LEFTOVER.fullmatch(path.name):
            shutil.rmtree(path, ignore_errors=True)


def leave_behind(directory: Path, step: int) -> list[Path]:
    """Renames the checkpoints after a step, so that neither a resume nor a save sees them; returns the new paths."""
    left = []
    for newer, path in _steps(directory) + _steps(directory, _ASIDE):
        if newer > step:
            left.append(directory / f"step_{newer}.left-{uuid.uuid4().hex}")
            os.rename(path, left[-1])
    if left:
        flush(directory)
    return left


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
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise CheckpointError(f"{path / _MANIFEST}: cannot be read: {error}") from error
    form = manifest.get("format")
    needed = (_WEIGHTS, _OPTIMIZER, _STATE)
    if form != FORMAT or not files.keys() >= set(needed) or step < 0:
        raise CheckpointError(
            f"{path / _MANIFEST}: expected format {FORMAT} with {', '.join(needed)}, got format {form!r:.20} with "
            f"{', '.join(sorted(files)):.200}"
        )
    for name, _, _ in entries:
        if not _FILE.fullmatch(name):
            raise CheckpointError(f"{path / _MANIFEST}: expected names of files inside, got {name!r:.100}")
    with ThreadPoolExecutor(2) as pool:  # hashing takes most of a resume's reading
        list(pool.map(lambda entry: _check_file(path / entry[0], *entry[1:]), entries))
    _check_strangers(path, set(files) | {_MANIFEST})
    return {**manifest, "step": step}


def _check_file(file: Path, size: int, digest: str) -> None:
    try:
        if file.is_symlink() or not file.is_file():
            raise CheckpointError(f"{file}: expected a file of {size} bytes, found none")
        got = file.stat().st_size
        if got != size:
            raise CheckpointError(f"{file}: expected {size} bytes, got {got}")
        found = sha256(file)
    except OSError as error:  # also if it was removed meanwhile
        raise CheckpointError(f"{file}: {size} bytes could not be read: {error.strerror or error}") from error
    if found != digest:
        raise CheckpointError(f"{file}: expected bytes with SHA-256 {digest[:12]}, got {found[:12]}")


def _check_strangers(path: Path, listed: set[str]) -> None:
    """Raises CheckpointError for a file that the manifest does not list: an engine may read all files that it finds."""
    try:
        found = [(place, place.is_symlink() or not place.is_dir()) for place in path.rglob("*")]
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from error
    for place, is_file in found:
        if is_file and place.relative_to(path).as_posix() not in listed:
            raise CheckpointError(f"{place}: expected only the files that {_MANIFEST} lists, got one more")


def latest_valid(directory: str | os.PathLike) -> tuple[Path | None, list[tuple[Path, str]]]:
    """The newest checkpoint that verifies, and the newer ones that do not, each with the reason."""
    skipped = []
    plain, aside = _steps(Path(directory)), _steps(Path(directory), _ASIDE)
    steps = {step for step, _ in plain}
    for _, path in sorted(plain + [entry for entry in aside if entry[0] not in steps], reverse=True):
        try:
            verify(path)
        except CheckpointError as error:
            skipped.append((path, str(error)))
        else:
            return path, skipped
    return None, skipped


def newest(directory: str | os.PathLike) -> Path | None:
    """The checkpoint that a resume takes, or None if there is none; warns of newer ones that are damaged.

    Raises:
        CheckpointError: there are checkpoints, but none is valid.
    """
    found, skipped = latest_valid(directory)
    for path, reason in skipped:
        _log.warning("checkpoint %s was skipped: %s", path, reason)
    if found is None and skipped:
        raise CheckpointError(
            f"{directory}: none of its {len(skipped)} checkpoints is valid; the first: {skipped[0][1]}"
        )
    return found


def launch_of(path: Path) -> str | None:
    """The ``launch`` with which a checkpoint that verifies was saved."""
    return json.loads((path / _MANIFEST).read_bytes()).get("launch")


def load(path: str | os.PathLike) -> tuple[dict[str, Tensor], dict, int]:
    """The tensors, the state and the step of a checkpoint. Raises CheckpointError if it does not verify."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = Path(path)
    manifest = verify(path)
    try:
        tensors = {}
        for name in (_WEIGHTS, _OPTIMIZER):
            with held_signals():  # as in weights.reading
                tensors |= load_file(path / name)
        state = json.loads((path / _STATE).read_bytes())
        # A writer may have replaced the checkpoint between two of these reads.
        after = json.loads((path / _MANIFEST).read_bytes())
    except (SafetensorError, RuntimeError, ValueError, OSError) as error:  # RecursionError too
        raise CheckpointError(f"{path}: cannot be read: {error}") from error
    if after["files"] != manifest["files"]:
        raise CheckpointError(f"{path}: expected one checkpoint, but it was written again while it was read")
    return tensors, state, manifest["step"]


def optimizer_tensors(
    optimizer: torch.optim.Optimizer, named_parameters: Sequence[tuple[str, Tensor]]
) -> tuple[dict[str, Tensor], dict]:
    """An optimiser's state by parameter name: tensors as ``optimizer.<key>.<parameter>``, the rest for JSON."""
    getattr(optimizer, "settle", lambda: None)()  # step counts may live on the device
    tensors, numbers = {}, {}
    for name, parameter in named_parameters:
        for key, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                tensors[f"{_OF_OPTIMIZER}{key}.{name}"] = value
            else:
                numbers.setdefault(name, {})[key] = value
    return tensors, numbers


def restore_optimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Sequence[tuple[str, Tensor]],
    tensors: dict[str, Tensor],
    numbers: dict,
) -> None:
    """Restores the state that `optimizer_tensors` returned; parameters without state start afresh.

    Raises:
        CheckpointError: a tensor has another shape than its parameter, or there is state of an unknown parameter.
    """
    by_name = _by_parameter(tensors, numbers)
    unknown = set(by_name) - {name for name, _ in named_parameters}
    if unknown:
        raise CheckpointError(f"optimizer state must be of this model's parameters, got {sorted(unknown)[:3]}")
    # torch's own optimisers keep their step counts in CPU tensors, unless they are fused or capturable.
    groups = optimizer.param_groups
    counts_there = {p for g in groups if g.get("fused") or g.get("capturable") for p in g["params"]}
    for name, parameter in named_parameters:
        state = by_name.get(name, {})
        for key, value in state.items():
            if isinstance(value, Tensor):
                _check_shape(f"{key} of {name}", value, parameter)
                stays = key == "step" and parameter not in counts_there
                state[key] = value.clone() if stays else value.to(parameter.device, copy=True)
        optimizer.state.pop(parameter, None)
        if state:
            optimizer.state[parameter] = state


def _by_parameter(tensors: dict[str, Tensor], numbers: dict) -> dict[str, dict]:
    """The state of each parameter, from the two results of `optimizer_tensors`."""
    by_name: dict[str, dict] = {name: dict(values) for name, values in numbers.items()}
    for full_name, value in tensors.items():
        if full_name.startswith(_OF_OPTIMIZER):
            key, _, name = full_name.removeprefix(_OF_OPTIMIZER).partition(".")
            by_name.setdefault(name, {})[key] = value
    return by_name


def _check_shape(what: str, value: Tensor, parameter: Tensor) -> None:
    if value.dim() and value.shape != parameter.shape:
        raise CheckpointError(f"optimizer state {what} must be {tuple(parameter.shape)}, got {tuple(value.shape)}")
