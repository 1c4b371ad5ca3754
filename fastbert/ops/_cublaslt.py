"""Matrix products by cuBLASLt (csrc/cublaslt.cpp), fused with biases, GELU or sums in their epilogue.

The library is the one that torch has loaded, found among the files mapped by the process; FASTBERT_CUBLASLT names
another. Nothing is loaded at import.
"""

from __future__ import annotations

import enum
import os
from functools import cache

import torch
from torch import Tensor

from .. import _native
from ..errors import BackendError
from ..wording import dtype_name

_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
# In bytes: as much as torch gives cuBLASLt on Hopper; on older GPUs no algorithm needs that much.
_WORKSPACE = 32 << 20


class Epilogue(enum.IntEnum):
    """The codes of csrc/include/cublaslt.h."""

    NONE = 0
    BIAS = 1
    BIAS_GELU = 2
    DGELU_BIAS_SUM = 3
    BIAS_SUM = 4


def _mapped() -> str | None:
    try:
        with open("/proc/self/maps") as file:
            paths = {line.split(None, 5)[-1].strip() for line in file if "libcublasLt.so" in line}
    except OSError:
        return None
    return min(paths, default=None)


@cache
def _load(path: str) -> str | None:
    return _native.extension().cublaslt_load(path) or None


def why_missing() -> str | None:
    """None where cuBLASLt can be called, else why not."""
    missing = _native.why_missing()
    if missing:
        return missing
    if not hasattr(_native.extension(), "cublaslt_load"):
        return "the extension was built without cuBLASLt's loader"
    path = os.environ.get("FASTBERT_CUBLASLT") or _mapped()
    if path is None:
        return "torch has loaded no libcublasLt (it does with its first product on a GPU)"
    reason = _load(path)
    return f"{path}: {reason}" if reason else None


@cache
def _workspace(device: torch.device, stream: int) -> Tensor:
    """A stream's workspace, never freed: concurrent products must not share one, and captured graphs refer to it."""
    return torch.empty(_WORKSPACE, dtype=torch.uint8, device=device)


def _place(device: torch.device) -> tuple[int, int]:
    """(device number, stream)."""
    if device.type != "cuda":
        return 0, 0  # in tests, with a stand-in for the library
    return device.index or 0, torch.cuda.current_stream(device).cuda_stream


def multiply(
    a: Tensor,
    b: Tensor,
    out: Tensor,
    *,
    transposed: tuple[bool, bool] = (False, False),
    epilogue: Epilogue = Epilogue.NONE,
    bias: Tensor | None = None,
    aux: Tensor | None = None,
) -> Tensor:
    """out = a b, of contiguous matrices of one dtype on one device.

    Args:
        a, b: (M, K) and (K, N), or transposed.
        out: (M, N); it is returned.
        transposed: whether a and b are stored transposed.
        epilogue: the operation on the sums before they are stored (csrc/include/cublaslt.h).
        bias: (N,), or (M,) for BIAS_SUM; the epilogue says whether it is read or written.
        aux: (M, N); likewise.

    Raises:
        BackendError: cuBLASLt has no such product.
    """
    rows, inner = a.shape[::-1] if transposed[0] else a.shape
    columns = b.shape[0] if transposed[1] else b.shape[1]
    # Assertions: shapes that do not fit, with which the library would read or write out of bounds, are a bug of ours.
    assert out.shape == (rows, columns)
    assert (b.shape[1] if transposed[1] else b.shape[0]) == inner
    assert all(t.is_contiguous() and t.device == a.device for t in (a, b, out, bias, aux) if t is not None)
    assert bias is None or bias.shape == (rows if epilogue == Epilogue.BIAS_SUM else columns,)
    assert aux is None or aux.shape == out.shape
    assert all(t.dtype == a.dtype for t in (b, out, bias, aux) if t is not None)
    number, stream = _place(a.device)
    workspace = _workspace(a.device, stream)
    with torch.cuda.device(a.get_device()):  # cuBLASLt's handle is the current device's; -1 (the CPU) changes nothing
        reason = _native.extension().cublaslt_multiply(
            _TYPES[a.dtype],
            [t.data_ptr() for t in (a, b, out)],
            [rows, columns, inner],
            list(transposed),
            int(epilogue),
            *(0 if t is None else t.data_ptr() for t in (bias, aux)),
            *(workspace.data_ptr(), workspace.numel(), number, stream),
        )
    if reason:
        shapes = f"{tuple(a.shape)} by {tuple(b.shape)} in {dtype_name(a.dtype)}"
        raise BackendError(f"cuBLASLt cannot multiply {shapes} with epilogue {epilogue.name}: {reason}")
    return out
