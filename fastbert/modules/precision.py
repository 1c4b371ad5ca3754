"""The precision and the device of a trained model that is to be used."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import nn

from .. import hardware
from ..errors import InputError
from .quantized import quantize

PRECISIONS = ("fp32", "bf16", "int8")

Model = TypeVar("Model", bound=nn.Module)


def device_for(precision: str, device: torch.device | None = None) -> torch.device:
    """The device of a model in this precision: the given one, else the CPU for int8, else the GPU if there is one.

    Raises:
        InputError: there is no such precision, or the device is not the CPU for int8.
    """
    if precision not in PRECISIONS:
        raise InputError(f"precision must be one of {', '.join(PRECISIONS)}, got {precision!r:.50}")
    if device is None:
        return torch.device("cpu") if precision == "int8" else hardware.default_device()
    if precision == "int8" and device.type != "cpu":
        raise InputError(f"device must be the CPU for int8, got {device}")
    return device


def in_precision(model: Model, precision: str, device: torch.device | None = None) -> Model:
    """Moves a loaded model to its device and precision: "fp32" leaves its dtype as it is, "bf16" converts the model,
    and "int8" applies `quantize`. Without a device, `device_for` chooses it.

    Raises:
        InputError: as `device_for` and `quantize` do.
        BackendError: int8 needs the C++ extension, and it was not built.
    """
    model = (model.bfloat16() if precision == "bf16" else model).to(device_for(precision, device))
    return quantize(model) if precision == "int8" else model
