"""What determines a result, as a short hash: two studies that ask for the same thing share it."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import logging
import math
import os
from collections.abc import Callable
from pathlib import Path

from ..files import sha256
from ..train.config import NEUTRAL, PretrainConfig

MATHS = 5
"""Raised by whoever changes what a given recipe comes to (kernels that round otherwise, data, losses, optimisers): what
is in a cache then belongs to the old one and is made anew."""

_log = logging.getLogger("fastbert")
_told: set[Path] = set()


def digest(value: object) -> str:
    """16 hexadecimal digits of a JSON value, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def file_digest(path: str | os.PathLike) -> str:
    """SHA-256 of a file's content; a file that has not changed is read once in a process."""
    state = os.stat(path)
    return _file_digest(os.fspath(path), state.st_mtime_ns, state.st_size)


@functools.cache
def _file_digest(path: str, _mtime: int, _size: int) -> str:
    return sha256(path)


@functools.cache
def arithmetic() -> dict:
    """Who computes: other libraries, kernels or devices round otherwise."""
    from ..train.arithmetic import rounding

    return {"maths": MATHS, **rounding()}


def is_number(value: object) -> bool:
    """A number, which on the way of a pre-training may be infinite."""
    return type(value) in (int, float)


def is_finite(value: object) -> bool:
    """A number that a mean can be taken of."""
    return is_number(value) and math.isfinite(value)


def is_count(value: object) -> bool:
    """A whole number, at least 1."""
    return type(value) is int and value >= 1


def _is_duration(value: object) -> bool:
    return is_finite(value) and value > 0


_MEASURED = {"seconds": _is_duration, "commit": (str, type(None)), "device": str, "threads": is_count}


def result_of(key: str, path: Path, holds: dict) -> dict | None:
    """The result that is kept in a file; None where there is none, or a damaged one, which is told once.

    Args:
        holds: what it has besides its key, as `fits` takes it; who made it and how long that took is in all.
    """
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError):
        found = None
    if fits(found, {"key": str, **holds, "measured": _MEASURED}) and found["key"] == key:
        return found
    if path not in _told:
        _told.add(path)
        _log.warning("%s is damaged: its result is made anew", path)
    return None


def fits(value: object, holds: dict | list | type | tuple[type, ...] | Callable[[object], bool]) -> bool:
    """Whether a JSON value is of a type or what a function asks for, a list of such values, at least one, or an object
    that has them under these names."""
    if isinstance(holds, dict):
        return isinstance(value, dict) and all(name in value and fits(value[name], of) for name, of in holds.items())
    if isinstance(holds, list):
        return isinstance(value, list) and bool(value) and all(fits(entry, holds[0]) for entry in value)
    return isinstance(value, holds) if isinstance(holds, (type, tuple)) else holds(value)


def of_pretraining(config: PretrainConfig, manifest: Path) -> str:
    """The hash of a pre-training: its options, its data, its arithmetic."""
    options = {name: value for name, value in dataclasses.asdict(config).items() if name not in NEUTRAL}
    if os.path.isdir(config.model):
        files = sorted(path for path in Path(config.model).rglob("*") if path.is_file())
        options["model"] = [file_digest(path) for path in files]
    return digest({"pretrain": options, "data": file_digest(manifest), **arithmetic()})
