"""What was found on this machine, which backend serves each op, and why the others do not.

setup.py runs this file alone, so the package's other modules are imported where they are needed.
"""

from __future__ import annotations

import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

# Distribution -> what fastbert uses it for.
_LIBRARIES = {
    "torch": "everything",
    "numpy": "data",
    "tokenizers": "text",
    "safetensors": "weights",
    "matplotlib": "plots",
    "tensorboard": "metrics",
    "transformers": "comparison with Hugging Face",
    "scikit-learn": "metrics of tasks: the extra [tasks]",
    "scipy": "metrics of tasks: the extra [tasks]",
    "seqeval": "metrics of tasks: the extra [tasks]",
    "triton": "GPU kernels: the extra [gpu]",
    "deepspeed": "training over several processes: the extra [deepspeed]",
    "onnxruntime": "comparison: the extra [bench]",
    "openvino": "comparison: the extra [bench]",
    "ctranslate2": "comparison: the extra [bench]",
}


_ROOT = Path(__file__).resolve().parents[1]


def commit() -> str | None:
    """The commit of this fastbert, followed by "+" if tracked files were changed: that of the checkout that it runs
    from, or the one that the installed package was built from; None if it is unknown."""
    from . import _native

    return commit_of_checkout() if (_ROOT / ".git").exists() else _native.build_info().get("commit")


def commit_of_checkout() -> str | None:
    """The commit of the checkout that contains this file; None outside a checkout. setup.py imports this file alone for
    this function."""
    if not (_ROOT / ".git").exists():
        return None
    try:
        answers = [
            subprocess.run(
                ["git", "-C", str(_ROOT), *command], capture_output=True, text=True, check=True
            ).stdout.strip()
            for command in (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])
        ]
    except (OSError, subprocess.CalledProcessError):
        return None
    return answers[0] + ("+" if answers[1] else "")


def _library(name: str, use: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return f"not installed ({use})"


def _gpu() -> str:
    import torch

    if torch.version.cuda is None:
        return f"none: torch {torch.__version__} was built without CUDA"
    if not torch.cuda.is_available():
        return "none: CUDA finds no device"
    return f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}"


def _cuda_kernels() -> str:
    from . import _native
    from .ops import _cuda

    if _native.why_missing() or not hasattr(_native.extension(), "cuda_pack"):
        return f"none: {_cuda.why_missing()}"
    reason = _cuda.why_missing()
    return f"for sm_{_native.extension().cuda_architectures}" + (f", not used: {reason}" if reason else "")


def _hardware(notes: list[str]) -> dict:
    import torch

    from . import _native, hardware

    if hardware.cpuid(0, 0) is None and platform.machine().lower() in ("x86_64", "amd64"):
        notes.append(
            "the processor's features could not be read (CPUID): if bfloat16 products crash, "
            f"set {hardware.ONEDNN_VARIABLE}={hardware.ONEDNN_CAP}"
        )
    capped = hardware.cap_onednn()
    if capped:
        notes.append(capped)
    quota = hardware.processor_quota()
    if quota is not None and torch.get_num_threads() > hardware.num_cores():
        notes.append(
            f"torch computes with {torch.get_num_threads()} threads, and this container may use the time of {quota:g} "
            f"processors, so that threads wait for each other: set OMP_NUM_THREADS={hardware.num_cores()}"
        )
    missing = _native.why_missing()
    if missing:
        notes.append(f"the C++ kernels are not used: {missing}")
    return {
        "cpu": hardware.processor_name(),
        "cores": hardware.num_cores(),
        "threads": torch.get_num_threads(),
        "isa": hardware.isa(),
        "kernels_isa": _native.isa() or f"none: {missing}",
        "features": list(hardware.features()),
        "amx_fault": hardware.amx_is_hollow(),
        "gpu": _gpu(),
        "kernels_cuda": _cuda_kernels(),
    }


def environment() -> dict[str, Any]:
    """Describes what fastbert found on this machine, and which backend serves each op; `fastbert doctor` prints it.

    Returns:
        a dictionary with "fastbert", "python", "torch": versions; "hardware": processor, cores, instruction sets, the
        GPU or why there is none; "libraries": name -> version, or what the library would be needed for; "ops": for each
        op the backend that serves it by default and why the others do not; "notes": advice in whole sentences.

    Raises:
        InputError: FASTBERT_BACKEND or FASTBERT_CPU_ISA names a backend or level that does not exist.
    """
    import torch

    from . import __version__
    from .ops import _dispatch

    notes: list[str] = []
    asked = _dispatch.current_backend()
    if asked != "auto":
        notes.append(
            f"backend {asked!r} is asked for by name (FASTBERT_BACKEND): ops that it cannot serve are refused; the "
            "table of ops shows what serves by default"
        )
    return {
        "fastbert": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "hardware": _hardware(notes),
        "libraries": {name: _library(name, use) for name, use in _LIBRARIES.items()},
        "ops": _dispatch.table(),
        "notes": notes,
    }
