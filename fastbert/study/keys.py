"""Short hashes of everything that determines a result, so that studies share equal results."""

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
"""To be incremented with every change of the results of a given recipe (other rounding in kernels, data, losses,
optimisers), so that results in a cache are computed again."""

_log = logging.getLogger("fastbert")
_told: set[Path] = set()


def digest(value: object) -> str:
    """A hash of a JSON value, as 16 hexadecimal digits, which does not depend on the order of keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def file_digest(path: str | os.PathLike) -> str:
    """The SHA-256 of a file's content; an unchanged file is read once per process."""
    state = os.stat(path)
    return _file_digest(os.fspath(path), state.st_mtime_ns, state.st_size)


@functools.cache
def _file_digest(path: str, _mtime: int, _size: int) -> str:
    return sha256(path)


@functools.cache
def arithmetic() -> dict:
    """The libraries, kernels and device that compute, since others round differently."""
    from ..train.arithmetic import rounding

    return {"maths": MATHS, **rounding()}


def is_number(value: object) -> bool:
    """Whether a value is a number, which during a pre-training may be infinite."""
    return type(value) in (int, float)


def is_finite(value: object) -> bool:
    """Whether a value is a finite number."""
    return is_number(value) and math.isfinite(value)


def is_count(value: object) -> bool:
    """Whether a value is an integer of at least 1."""
    return type(value) is int and value >= 1


def _is_duration(value: object) -> bool:
    return is_finite(value) and value > 0


_MEASURED = {
    "seconds": _is_duration,
    "processor_seconds": is_finite,
    "commit": (str, type(None)),
    "device": str,
    "threads": is_count,
}


def result_of(key: str, path: Path, holds: dict) -> dict | None:
    """The result in a file; None if there is none or, with one warning, if it is damaged.

    Args:
        key: the hash that the result must have.
        path: the file.
        holds: the form of the result, as for `fits`, besides the key and the measurements, which all results have.
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
        _log.warning("%s is damaged: its result is computed again", path)
    return None


def fits(value: object, holds: dict | list | type | tuple[type, ...] | Callable[[object], bool]) -> bool:
    """Whether a JSON value has a given form.

    Args:
        value: the value.
        holds: a type, or a function that checks the value; a list with the form of the elements of a list that is not
            empty; or a dictionary with the forms of an object's entries.
    """
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
