"""The precision policy of training: in which types a forward pass multiplies, and what of it outlasts a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from .. import fp8
from ..errors import BackendError, CheckpointError

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.bfloat16}
# The first NVIDIA GPUs whose matrix units take 8-bit floats are Ada's (8.9) and Hopper's (9.0).
_LEAST_CAPABILITY = (8, 9)
_HISTORY = "fp8.history"


def why_no_fp8(device: torch.device) -> str | None:
    """None where 8-bit products can be had on this device, else why not; a CPU computes them too, slowly."""
    if device.type == "cpu":
        return None
    if device.type != "cuda" or torch.version.cuda is None:
        return f"they are for NVIDIA GPUs and CPUs, got {device}"
    found = torch.cuda.get_device_capability(device)
    if found >= _LEAST_CAPABILITY:
        return None
    name, least = torch.cuda.get_device_name(device), "{}.{}".format(*_LEAST_CAPABILITY)
    return f"they need a GPU of compute capability {least} or newer, got {name} with {found[0]}.{found[1]}"


class Precision:
    """What a setting of ``precision`` means for one model.

    fp8 is bf16 in which the dense layers of the encoder multiply 8-bit floats in training (`fastbert.fp8`). An
    evaluation is in bf16: what it measures is what the weights are worth to those who use them.

    Args:
        name: fp32, bf16, fp16 or fp8.
        model, device: what is trained, and where.

    Raises:
        BackendError: the device has no 8-bit products.
        InputError: the model has no layer for them.
    """

    def __init__(self, name: str, model: nn.Module, device: torch.device) -> None:
        self.name, self._device, self._dtype = name, device, _AUTOCAST.get(name)
        self.fp8: fp8.Policy | None = None
        if name == "fp8":
            reason = why_no_fp8(device)
            if reason is not None:
                raise BackendError(f"precision fp8 has no 8-bit products on this device: {reason}")
            from ..modules.fp8 import policy

            self.fp8 = policy(model)

    @contextmanager
    def block(self) -> Iterator[None]:
        """While the block runs, forward passes compute in the precision."""
        dtype = self._dtype or torch.bfloat16
        with torch.autocast(self._device.type, dtype, enabled=self._dtype is not None), fp8.use(self.fp8):
            yield

    def end_step(self, over_ranks: Callable[[Tensor], object] | None) -> None:
        """After each step, also one that was skipped: new scales; `fp8.Scales.end_step`."""
        if self.fp8 is not None:
            self.fp8.scales.end_step(over_ranks)

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint keeps; the same on all ranks."""
        return {} if self.fp8 is None else {_HISTORY: self.fp8.scales.history}

    def restore(self, path: Path, tensors: dict[str, Tensor]) -> None:
        """Puts back what `state` gave; after a run in another precision scales begin anew.

        Raises:
            CheckpointError: it is of another model.
        """
        history = tensors.get(_HISTORY)
        if self.fp8 is None or history is None:
            return
        expected = self.fp8.scales.history.shape
        if history.shape != expected:
            raise CheckpointError(f"{path}: {_HISTORY} must be {tuple(expected)}, got {tuple(history.shape)}")
        self.fp8.scales.restore(history)
