"""torch's setting of how float32 matrices are multiplied, by its older switch and by its newer one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_OLDER_NAMES = {"tf32": "high", "bf16": "medium"}


def _modules() -> list:
    """Those that have the newer switch, of CUDA and of the CPU; none before torch 2.9."""
    found = (torch.backends.cuda.matmul, getattr(torch.backends.mkldnn, "matmul", None))
    return [module for module in found if hasattr(module, "fp32_precision")]


def _by_the_older_switch() -> str | None:
    """None where the newer one has a value that the older one lacks, or that holds for some devices alone."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return None


def float32_matmul_precision(device_type: str) -> str:
    """What `torch.get_float32_matmul_precision` returns, "highest", "high" or "medium"; after
    ``torch.backends.fp32_precision = "tf32"`` and the like that raises an error, and this is the device's own value.

    Args:
        device_type: "cuda", or "cpu" for any other.
    """
    older = _by_the_older_switch()
    if older is not None:
        return older
    module = torch.backends.cuda.matmul if device_type == "cuda" else torch.backends.mkldnn.matmul
    return _OLDER_NAMES.get(module.fp32_precision, "highest")


@contextmanager
def use_float32_matmul_precision(precision: str) -> Iterator[None]:
    """A context in which this is the process's setting, by the older switch. Afterwards both are as they were."""
    older, modules = _by_the_older_switch(), _modules()
    newer = [module.fp32_precision for module in modules]
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(older or "highest")
        for module, value in zip(modules, newer, strict=True):
            # The older switch gave it a value of its own: without one it follows `torch.backends` again.
            module.fp32_precision = "none"
            if module.fp32_precision != value:
                module.fp32_precision = value
