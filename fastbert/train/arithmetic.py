"""What the bits of a training depend on besides its recipe: libraries, kernels, devices, threads and processes."""

from __future__ import annotations

import logging
import os

import torch

from .. import _native, hardware, ops
from .distributed import World

_log = logging.getLogger("fastbert")


def rounding() -> dict:
    """Libraries, kernels and devices, each of which rounds in its own way."""
    return {
        "torch": torch.__version__,
        "backend": ops.current_backend(),
        "kernels": _native.isa(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def computed_with(world: World) -> dict:
    """What a checkpoint records: `rounding`, and what sums are divided by: threads and ranks."""
    products = ops.float32_matmul_precision("cuda" if torch.cuda.is_available() else "cpu")
    here = {**rounding(), "processor": hardware.processor_name(), "threads": torch.get_num_threads()}
    return {**here, "float32 products": products, "processes": world.size}


def differing(before: dict, now: dict) -> list[str]:
    """The values of ``now`` that differ from those that ``before`` has, as phrases for a message."""
    names = [name for name in now if name in before and str(now[name]) != str(before[name])]
    return [f"{name} {now[name]} ({before[name]} before)" for name in names]


def warn_of_others(path: str | os.PathLike, before: dict, now: dict, world: World) -> None:
    """Warns, on the first rank, if a run is resumed under other conditions than those under which its checkpoint was
    written: the run is as good, but its bits differ from those of an uninterrupted run.

    Args:
        path: the checkpoint.
        before, now: the results of `computed_with` at that time and now.
    """
    others = differing(before, now)
    if others and world.first:
        _log.warning(
            "%s continues under other conditions, so its bits will differ from those of an uninterrupted run: %s",
            path,
            ", ".join(others),
        )
