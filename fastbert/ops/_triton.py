"""Shared by the ops of the Triton backend: where it can run, dropout's state on the device, registration as torch ops.

The kernels (fastbert/triton_kernels) are imported by the first call that they serve. They run on CUDA devices and, with
TRITON_INTERPRET=1 in the environment, on CPU tensors too: slowly, for tests.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sysconfig
from functools import cache, partial
from importlib import metadata
from pathlib import Path

import torch
from torch import Tensor

from ..rng import Dropout
from ..wording import dtype_name
from . import _define, _dropout_schema
from ._dispatch import current_backend

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
# 3.2 cannot compile attention, and aborts the process in the optimisers' kernels.
_LEAST_TRITON = (3, 3)
# Older GPUs have less shared memory than attention takes, and no bfloat16.
_LEAST_CAPABILITY = 8
# Registered for all devices: `accepts` has checked where the tensors are.
define = partial(_define.define, key="CompositeExplicitAutograd")


# Triton runs its kernels in Python, on any device.
_INTERPRETING = os.environ.get("TRITON_INTERPRET") == "1"


def _reason_of_installation() -> str | None:
    if importlib.util.find_spec("triton") is None:
        return 'triton is not installed (pip install "fastbert[gpu]")'
    if _INTERPRETING:
        return None
    if torch.version.cuda is None:
        return "this torch was built without CUDA"
    return _reason_of_version() or _reason_of_compiler()


def _reason_of_version() -> str | None:
    for name in ("triton", "pytorch-triton"):
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        found = re.match(r"(\d+)\.(\d+)", version)
        if found and tuple(map(int, found.groups())) < _LEAST_TRITON:
            least = ".".join(map(str, _LEAST_TRITON))
            return f"the kernels need triton {least} or newer, got {version}, which comes with an older torch"
        return None
    return None


def _reason_of_compiler() -> str | None:
    """Triton compiles the launchers of its kernels with the system's C compiler, found as in triton.runtime.build."""
    if os.name != "posix":
        return None
    if not (os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")):
        return "Triton needs a C compiler on the machine, found none (install gcc, or name one in CC)"
    scheme = sysconfig.get_default_scheme()
    header = Path(sysconfig.get_path("include", "posix_prefix" if scheme == "posix_local" else scheme), "Python.h")
    return None if header.exists() else f"Triton needs Python's headers, found no {header} (install python3-dev)"


# At import, where torch.compile does not trace it; whether there is a device is asked later, by `why_missing`.
_REASON = _reason_of_installation()


def why_missing() -> str | None:
    """None if Triton's kernels can run, else the reason why not."""
    if _REASON is not None or _INTERPRETING:
        return _REASON
    if not torch.cuda.is_available():
        return "torch finds no CUDA device"
    # CUDA is not initialised just to answer this, since a process forked afterwards could not use it.
    # `why_not_device` looks at the GPU that a tensor is on, which need not be the current one.
    if torch.compiler.is_compiling() or not torch.cuda.is_initialized():
        return None
    return _why_no_gpu()


@cache
def _why_no_gpu() -> str | None:
    """None if the kernels run on one of the GPUs that this process sees, else why not on the first."""
    reasons = [_known_gpu(torch.device("cuda", number)) for number in range(torch.cuda.device_count())]
    return None if None in reasons else next(iter(reasons), None)


def _why_not_gpu(device: torch.device) -> str | None:
    found = torch.cuda.get_device_properties(device)  # the one query of a GPU that torch.compile can trace
    if found.major >= _LEAST_CAPABILITY:
        return None
    got = f"{found.name} with {found.major}.{found.minor}"
    return f"the Triton kernels need a GPU of compute capability {_LEAST_CAPABILITY}.0 or newer, got {got}"


_known_gpu = cache(_why_not_gpu)


def why_not_device(x: Tensor) -> str | None:
    """None if the tensor is on a device where Triton's kernels run, else the reason why not."""
    if x.device.type == "cuda":
        return _why_not_gpu(x.device) if torch.compiler.is_compiling() else _known_gpu(x.device)
    if _INTERPRETING and current_backend() == "triton":
        return None
    return f"the Triton kernels take CUDA tensors, got one on {x.device}"


def why_not(x: Tensor, *others: Tensor | None, parameters: tuple[Tensor | None, ...] = ()) -> str | None:
    """None if the kernels can take these tensors, else the reason why not; arguments as in `_cpu.why_not`."""
    for tensor in (x, *others, *parameters):
        if tensor is None:
            continue
        if tensor.dtype not in DTYPES:
            return f"the Triton kernels take float16, bfloat16 and float32, got {dtype_name(tensor.dtype)}"
        if tensor is x or tensor.device != x.device:
            elsewhere = why_not_device(tensor)
            if elsewhere is not None:
                return elsewhere
        if tensor.device != x.device:  # to a kernel, an address on another GPU is an address like any other
            return f"the Triton kernels take tensors on one device, got {x.device} and {tensor.device}"
    for tensor in others:  # a loop: torch 2.6's compiler cannot trace next() with a default
        if tensor is not None and tensor.dtype != x.dtype:
            return f"the Triton kernels take one dtype, got {x.dtype} and {tensor.dtype}"
    return None


# Blocks of columns are counted along an axis of which a grid has no more; blocks of most kernels have 256 columns.
_MOST_COLUMNS = 65_535 * 256


def why_not_wide(x: Tensor) -> str | None:
    """None if rows are short enough for a kernel whose grid has an axis for blocks of columns, else the reason."""
    if x.shape and x.shape[-1] > _MOST_COLUMNS:
        return f"the Triton kernels take rows of at most {_MOST_COLUMNS:,} columns here, got {x.shape[-1]:,}"
    return None


@cache
def _state(seed: int, offset: int, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # a pass that autograd records may have the same seed later
        return torch.tensor([seed, offset], dtype=torch.int64).to(device, non_blocking=True)


# How a schema carries a `Dropout`: rng (2,) int64 on the device holds seed and offset; None for no dropout.
RANDOM_SCHEMA = "Tensor? rng, int site, int threshold, float scale"


def random_arguments(dropout: Dropout | None, device: torch.device) -> tuple[Tensor | None, int, int, float]:
    """(rng, site, threshold, scale) for a schema. All sites of a forward pass share one rng, which is copied to the
    device once."""
    if dropout is None:
        return None, 0, 0, 1.0
    if dropout.state is not None:
        return dropout.state.to(device, non_blocking=True), dropout.site, dropout.threshold, dropout.scale
    _, seed, offset, site, _ = _dropout_schema.arguments(dropout)
    if _state.cache_info().currsize > 64:
        _state.cache_clear()
    return _state(seed, offset, device), site, dropout.threshold, dropout.scale


def dropout_of(rng: Tensor | None, site: int, threshold: int) -> Dropout | None:
    """The dropout that `random_arguments` stand for."""
    return None if rng is None else Dropout(threshold / 65536, None, None, site, rng)


def flat(x: Tensor | None) -> Tensor | None:
    """(..., C) -> (rows, C), contiguous."""
    if x is None:
        return None
    return x.reshape(-1, x.shape[-1]).contiguous() if x.numel() else x.new_empty(0, x.shape[-1])


def whole_rows(x: Tensor) -> Tensor:
    """x with contiguous last dimension; the other dimensions may have any strides."""
    return x if x.stride(-1) == 1 else x.contiguous()
