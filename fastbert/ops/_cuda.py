"""Shared by the ops of the CUDA backend: whether its kernels can run, how they are launched, when they are chosen.

The kernels (csrc/cuda, and cuBLASLt through csrc/cublaslt.cpp) run on the current stream and wait for nothing. "auto"
chooses them only if a measurement on the same kind of GPU shows that they are faster than the next backend in the order
(fastbert/measured, written by benchmarks/gpu/record.py).
"""

from __future__ import annotations

import importlib.util
import json
from functools import cache
from pathlib import Path

import torch

from .. import _native
from ..errors import BackendError
from ..hardware import gpu_slug
from ._dispatch import current_backend

MEASURED = Path(__file__).parents[1] / "measured"
# Smaller gains are within the noise of a measurement.
LEAST_GAIN = 1.02


def _reason_of_installation() -> str | None:
    missing = _native.why_missing()
    if missing:
        return missing
    if not hasattr(_native.extension(), "cuda_pack"):
        return _native.build_info().get("cuda_reason") or "the extension was built where no nvcc worked"
    if torch.version.cuda is None:
        return "this torch was built without CUDA"
    return None


# At import, where torch.compile does not trace it; whether there is a device is asked later, by `why_missing`.
_REASON = _reason_of_installation()


def why_missing() -> str | None:
    """None if the kernels of csrc/cuda can run, else the reason why not."""
    if _REASON is not None:
        return _REASON
    if not torch.cuda.is_available():
        return "torch finds no CUDA device"
    return None if torch.compiler.is_compiling() else _reason_of_driver()  # a compiler cannot ask the extension


@cache
def _reason_of_driver() -> str | None:
    """Why the driver does not run these kernels, which have a CUDA runtime of their own, although it runs torch's."""
    driver, runtime = _native.extension().cuda_versions()
    if driver // 1000 >= runtime // 1000:  # within a major version all go together
        return None
    old, new = (f"{version // 1000}.{version % 1000 // 10}" for version in (driver, runtime))
    return f"they were built with CUDA {new}, and the driver is for {old}"


def call(name: str, device: torch.device, *arguments) -> None:
    """Launches a kernel of the extension on the device's current stream.

    Raises:
        BackendError: with CUDA's message, if the launch fails.
    """
    with torch.cuda.device(device):
        try:
            getattr(_native.extension(), name)(*arguments, torch.cuda.current_stream(device).cuda_stream)
        except RuntimeError as error:
            raise BackendError(str(error)) from None


@cache
def _gains(gpu: str) -> dict[str, float]:
    try:
        return {
            name: row["gain"]
            for name, row in json.loads((MEASURED / f"{gpu_slug(gpu)}.json").read_text())["rows"].items()
        }
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def why_not_measured(what: str, device: torch.device) -> str | None:
    """None if the backend was asked for by name or a measurement on this kind of GPU shows a gain, else why not."""
    if current_backend() == "cuda":
        return None
    if device.type != "cuda":
        return f"the CUDA kernels take CUDA tensors, got one on {device}"
    if torch.compiler.is_compiling():
        return "a compiler can neither ask for the GPU's name nor read what was measured on it"
    gain = _gains(torch.cuda.get_device_name(device)).get(what)
    if gain is None:
        return f"no measurement of {what} on {torch.cuda.get_device_name(device)} is recorded"
    return None if gain >= LEAST_GAIN else f"{what} is measured at {gain:.2f} times the speed of what serves instead"


def why_no_triton() -> str | None:
    """None if Triton is installed, whose tables and norm the CUDA optimisers use too, else the reason why not."""
    return None if importlib.util.find_spec("triton") else 'triton is not installed (pip install "fastbert[gpu]")'
