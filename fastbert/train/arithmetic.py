"""Who computes: two trainings of one recipe come to the same bits only where this is the same too."""

from __future__ import annotations

import logging
import os

import torch

from .. import _native, hardware, ops
from .distributed import World

_log = logging.getLogger("fastbert")


def rounding() -> dict:
    """Libraries, kernels and devices, which round each in its own way."""
    return {
        "torch": torch.__version__,
        "backend": ops.current_backend(),
        "kernels": _native.isa(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def computed_with(world: World) -> dict:
    """What a checkpoint records of its arithmetic: `rounding`, and the ranks, by which sums are cut."""
    here = {**rounding(), "processor": hardware.processor_name(), "threads": torch.get_num_threads()}
    return {**here, "float32 products": torch.get_float32_matmul_precision(), "processes": world.size}


def differing(before: dict, now: dict) -> list[str]:
    """The values of ``now`` that differ from those of ``before``, where it has them, as pieces of a line of text."""
    names = [name for name in now if name in before and str(now[name]) != str(before[name])]
    return [f"{name} {now[name]} ({before[name]} before)" for name in names]


def warn_of_others(path: str | os.PathLike, before: dict | None, world: World) -> None:
    """Says in one line, on the first rank, what computes otherwise than where a checkpoint was written. What follows is
    as good a run, but not to the bit the one that was left alone.

    Args:
        path: of the checkpoint.
        before: what `computed_with` gave then; None of an older checkpoint, which does not say.
    """
    others = differing(before or {}, computed_with(world))
    if others and world.first:
        _log.warning(
            "%s continues under other conditions, so its bits will differ from those of an uninterrupted run: %s",
            path,
            ", ".join(others),
        )
