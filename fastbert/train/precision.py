"""The precision of training: the types in which a forward pass computes, and the state of 8-bit scales."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from .. import fp8, ops
from ..errors import BackendError, CheckpointError

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.bfloat16}
# The first NVIDIA GPUs whose tensor cores multiply 8-bit floats are Ada (8.9) and Hopper (9.0).
_LEAST_CAPABILITY = (8, 9)
_HISTORY = "fp8.history"


def why_no_fp8(device: torch.device) -> str | None:
    """None if the device can compute 8-bit products, otherwise the reason. A CPU emulates them, slowly."""
    if device.type == "cpu":
        return None
    if device.type != "cuda" or torch.version.cuda is None:
        return f"they need an NVIDIA GPU or a CPU, got {device}"
    found = torch.cuda.get_device_capability(device)
    if found >= _LEAST_CAPABILITY:
        return None
    name, least = torch.cuda.get_device_name(device), "{}.{}".format(*_LEAST_CAPABILITY)
    return f"they need a GPU of compute capability {least} or newer, got {name} with {found[0]}.{found[1]}"


def float32_products(asked: str, device: torch.device) -> str:
    """The precision of float32 products in training steps, "highest", "high" or "medium" as torch names them.

    Args:
        asked: "highest", "high", or "auto": high on a CPU that computes it faster (`ops.has_two_parts`), otherwise
            torch's own setting.
        device: where the model is trained.
    """
    if asked != "auto":
        return asked
    own = ops.float32_matmul_precision(device.type)
    return "high" if own == "highest" and device.type == "cpu" and ops.has_two_parts() else own


@contextmanager
def use_float32_products(precision: str, device: torch.device) -> Iterator[None]:
    """A context in which this thread's training steps on the device have this precision (`float32_products`).

    On a GPU it is torch's setting of the whole process that is changed and set back.
    """
    if precision == ops.float32_matmul_precision(device.type):
        yield
    elif precision == "high" and device.type == "cpu":
        with ops.products_in_two_parts():
            yield
    else:
        with ops.use_float32_matmul_precision(precision):
            yield


class Precision:
    """The precision in which one model is trained.

    fp8 is bf16 in which the encoder's dense layers multiply 8-bit floats in training (`fastbert.fp8`). Evaluation is in
    bf16, so that it measures the weights as they will be used.

    Args:
        name: fp32, bf16, fp16 or fp8.
        model, device: the model, and the device on which it is trained.

    Raises:
        BackendError: fp8, on a device without 8-bit products.
        InputError: fp8, for a model without layers that can use them.
    """

    def __init__(self, name: str, model: nn.Module, device: torch.device) -> None:
        self.name, self._device, self._dtype = name, device, _AUTOCAST.get(name)
        self.fp8: fp8.Policy | None = None
        if name == "fp8":
            reason = why_no_fp8(device)
            if reason is not None:
                raise BackendError(f"precision fp8: this device has no 8-bit products: {reason}")
            from ..modules.fp8 import policy

            self.fp8 = policy(model)

    @contextmanager
    def block(self) -> Iterator[None]:
        """A context in which forward passes compute in this precision."""
        dtype = self._dtype or torch.bfloat16
        with torch.autocast(self._device.type, dtype, enabled=self._dtype is not None), fp8.use(self.fp8):
            yield

    def end_step(self, over_ranks: Callable[[Tensor], object] | None) -> None:
        """Updates the scales of 8-bit tensors; called after each step, also after one that was skipped.

        Args:
            over_ranks: as in `fp8.Scales.end_step`.
        """
        if self.fp8 is not None:
            self.fp8.scales.end_step(over_ranks)

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint stores; the same on all ranks."""
        return {} if self.fp8 is None else {_HISTORY: self.fp8.scales.history}

    def restore(self, path: Path, tensors: dict[str, Tensor]) -> None:
        """Restores what `state` returned. Without it, in a checkpoint of another precision, scales start afresh.

        Args:
            path: the checkpoint, for errors.
            tensors: its tensors.

        Raises:
            CheckpointError: the checkpoint is of another model.
        """
        history = tensors.get(_HISTORY)
        if self.fp8 is None or history is None:
            return
        expected = self.fp8.scales.history.shape
        if history.shape != expected:
            raise CheckpointError(f"{path}: {_HISTORY} must be {tuple(expected)}, got {tuple(history.shape)}")
        self.fp8.scales.restore(history)
