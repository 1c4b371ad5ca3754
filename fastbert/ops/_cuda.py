"""What the CUDA backend shares: whether its kernels can run here, how they are started, when they are chosen.

The kernels (csrc/cuda, and cuBLASLt through csrc/cublaslt.cpp) wait for nothing: a tensor's memory is the stream's.
They are chosen by themselves only where a measurement on the same GPU shows that they are faster than what stands
below them in the order of backends (fastbert/measured, written by benchmarks/gpu/record.py).
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

MEASURED = Path(__file__).parents[1] / "measured"
# A gain below this is within what two measurements of one thing differ by.
LEAST_GAIN = 1.02


def _reason_of_installation() -> str | None:
    missing = _native.why_missing()
    if missing:
        return missing
    if not hasattr(_native.extension(), "cuda_pack"):
        return "the extension was built where no nvcc worked"
    if torch.version.cuda is None:
        return "this torch was built without CUDA"
    return None


# At import, where nothing traces it; a device is only looked for when it is asked for.
_REASON = _reason_of_installation()


def why_missing() -> str | None:
    """None where the kernels of csrc/cuda can run, else why not."""
    if _REASON is not None or torch.cuda.is_available():
        return _REASON
    return "torch finds no CUDA device"


def call(name: str, device: torch.device, *arguments) -> None:
    """Starts a kernel of the extension on the device's current stream.

    Raises:
        BackendError: CUDA refuses; the message has its words.
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
    """None where a recorded measurement on this kind of GPU shows a gain, or the backend was asked for by name."""
    from ._dispatch import current_backend

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


def has_triton() -> str | None:
    """None where Triton is installed, whose tables and norm the optimisers share, else why not."""
    return None if importlib.util.find_spec("triton") else 'triton is not installed (pip install "fastbert[gpu]")'
