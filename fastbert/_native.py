"""Loads the extension `fastbert._C` (csrc/), or explains why it is missing.

Importing this module raises InputError if FASTBERT_CPU_ISA names a level that cannot run on this processor.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys
from pathlib import Path
from types import ModuleType

from ._interface import interface
from .errors import BackendError, InputError

_log = logging.getLogger("fastbert")
_OTHER_SOURCES = "the C++ extension was built from other sources than this fastbert"
_AGAIN = "build it again: `pip install .`, or `python setup.py build_ext --inplace` in a checkout"


def build_info() -> dict:
    """What setup.py recorded: "extension", whether it was built; "reason", why not; "commit" of the sources, or None.
    Empty if setup.py did not run or the record is damaged."""
    try:
        found = json.loads(Path(__file__).with_name("_build_info.json").read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _installed_elsewhere() -> Path | None:
    """The directory of another fastbert on `sys.path` that has the extension, if any: the installed package, when
    Python was started in a checkout and imports the sources there."""
    here = Path(__file__).resolve().parent
    for entry in sys.path:
        package = Path(entry).absolute() / "fastbert"
        if next(package.glob("_C.*"), None) is not None and package.resolve() != here:
            return package
    return None


def _reason_of_build() -> str:
    reason = build_info().get("reason")
    if reason:
        return reason
    other = _installed_elsewhere()
    if other is None:
        return "the C++ extension was not built (`pip install .` with a C++ compiler builds it)"
    reason = (
        f"Python took fastbert from {Path(__file__).resolve().parent}, where the C++ extension is not built, and not "
        f"the installed one in {other}: start it in another directory, or install with `pip install -e .`"
    )
    # A user who has built the extension does not expect to run without it.
    _log.warning("%s", reason)
    return reason


def _reason_of_place(module: ModuleType) -> str | None:
    """Why an extension is not this package's, if it is another's: a package that is installed with ``pip install -e``
    is asked for it where Python took the sources of another checkout, and has kernels of its own."""
    here = Path(__file__).resolve().parent
    place = Path(module.__file__).parent.resolve()
    if place == here:
        return None
    reason = (
        f"Python took fastbert from {here}, where the C++ extension is not built, and not the installed one in "
        f"{place}: start it in another directory, or build it here with `python setup.py build_ext --inplace`"
    )
    _log.warning("%s", reason)
    return reason


def _reason_of_interface(module: ModuleType) -> str | None:
    """Why an extension does not fit this package, if its sources are there (a checkout, an editable installation) and
    have changed since it was built: it would take arguments for others."""
    wanted = interface(Path(__file__).resolve().parents[1] / "csrc")
    if not wanted or getattr(module, "interface", None) in ("", wanted):  # "": built by CMake alone
        return None
    reason = f"{_OTHER_SOURCES} ({_AGAIN})"
    # As above: whoever has built the extension does not expect to run without it.
    _log.warning("%s", reason)
    return reason


class _MissingFunctionError(BackendError, AttributeError):
    """The extension lacks a function. It is an AttributeError too, so that ``hasattr`` works on the extension."""


def _missing_function(name: str):
    raise _MissingFunctionError(f"{_OTHER_SOURCES}: expected a function {name!r} in it, got none ({_AGAIN})")


def _load() -> tuple[ModuleType | None, str | None]:
    try:
        module = importlib.import_module("fastbert._C")
    except ModuleNotFoundError as error:
        if error.name != "fastbert._C":
            raise
        return None, _reason_of_build()
    except ImportError as error:
        return None, f"the C++ extension does not load: {error}"
    if reason := _reason_of_place(module) or _reason_of_interface(module):
        return None, reason
    module.__getattr__ = _missing_function  # called only for names that the module lacks
    wanted = os.environ.get("FASTBERT_CPU_ISA")
    if wanted:
        try:
            module.set_isa(wanted)
        except ValueError:
            here = ", ".join(module.supported_isas())
            raise InputError(f"FASTBERT_CPU_ISA must be one of {here} on this processor, got {wanted!r}") from None
    return module, None


def _compute_alone() -> None:
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    # A forked child has none of its parent's threads, and its first OpenMP loop, ours or torch's, would wait for them
    # for ever.
    os.register_at_fork(after_in_child=_compute_alone)

# At import, not at first use: torch.compile traces the functions below and cannot trace an import.
_module, _missing = _load()


def why_missing() -> str | None:
    """None if the extension is loaded, else the reason why not."""
    return _missing


def extension() -> ModuleType:
    """The module `fastbert._C`.

    Raises:
        BackendError: it is not loaded; the message says why.
    """
    if _module is None:
        raise BackendError(f"the CPU kernels cannot be used: {_missing}")
    return _module


def isa() -> str | None:
    """The instruction-set level that the CPU kernels use, e.g. "avx512"; None without the extension."""
    return _module.isa() if _module else None


LOOPS = {"fp32": 0, "bf16": 1, "int8": 2, "bf16 tile": 3, "int8 tile": 4}
"""The loops of csrc/cpu/probe.cpp: multiply-adds that stay in registers."""


_LOOP_ROUND = 1e-3  # seconds: shorter than the scheduler's time slice, after which another process may get the core


def loop_rate(what: str, seconds: float = 0.1) -> float:
    """The rate of a loop at the level in use, with as many threads as torch has.

    It is the best of many short rounds: on a busy machine some of these run undisturbed, while a long round would share
    the cores with other processes.

    Args:
        what: a key of `LOOPS`.
        seconds: about how long to measure.

    Returns:
        operations per second; 0 if the level has no such instruction, or without the extension.
    """
    if _module is None:
        return 0.0
    iterations = 200
    operations, took = _module.probe(LOOPS[what], iterations)
    if not operations:
        return 0.0
    iterations = max(1, int(iterations * _LOOP_ROUND / max(took, 1e-7)))
    rounds = (_module.probe(LOOPS[what], iterations) for _ in range(max(5, round(seconds / _LOOP_ROUND))))
    return max(operations / took for operations, took in rounds)
