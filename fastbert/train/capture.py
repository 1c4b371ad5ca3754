"""What captured training steps share (`graph`, `shaped_steps`): streams and memory, how a batch gets onto the device,
and the seed and offset of dropout in device memory."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from .. import rng
from ..graph_capture import Replay
from .engine import LocalEngine


class Captures:
    """The captures of one engine's steps. On a CPU nothing is captured: a replay calls its function.

    Args:
        device: the model's device.

    Attributes:
        enabled: whether steps are captured.
        stream: the side stream of all captures and of the uncaptured steps before them, None on a CPU. With two
            streams, a step's memory and cuBLAS's workspace would be held twice.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self.enabled = device, device.type == "cuda"
        self.stream = torch.cuda.Stream(device) if self.enabled else None
        self._pool = torch.cuda.graph_pool_handle() if self.enabled else None

    def replay(self) -> Replay:
        """A place for a graph; all graphs share one pool of memory."""
        return Replay(self.stream, self._pool)

    def on_device(self) -> AbstractContextManager:
        """A context in which the model's device is the current one, to which streams belong."""
        return torch.cuda.device(self._device) if self.enabled else nullcontext()

    def load(self, targets: Iterable[Tensor], sources: Iterable[Tensor]) -> None:
        """Copies a batch on the host into the tensors that steps read; from pinned memory, so that the host does not
        wait."""
        for target, source in zip(targets, sources, strict=True):
            target.copy_(source.pin_memory() if self.enabled else source, non_blocking=True)


class DropoutState:
    """The seed and offset of dropout in device memory. A number from the host would stay as it was at the capture.

    Args:
        device: the model's device.
    """

    def __init__(self, device: torch.device) -> None:
        self._state = torch.zeros(2, dtype=torch.int64, device=device)
        self._known_for: int | None = None

    def follow(self, engine: LocalEngine) -> None:
        """Copies the engine's seed and offset to the device if the offset is not the one after the last `passed`: at
        the start, and after a checkpoint was loaded or a step was made without this object."""
        if self._known_for != engine.micro_step:
            self._state.copy_(torch.tensor([_signed(engine.seed), engine.micro_step], device="cpu"))
            self._known_for = engine.micro_step

    def key(self, engine: LocalEngine) -> rng.DropoutKey:
        """The key of the next forward pass."""
        return rng.DropoutKey(engine.seed, engine.micro_step, self._state)

    def advance(self) -> None:
        """Moves on to the next forward pass, on the device; part of the captured step."""
        self._state[1] += 1

    def passed(self, engine: LocalEngine) -> None:
        """Moves on to the next forward pass, on the host; called after each pass or replay."""
        engine.micro_step += 1
        self._known_for = engine.micro_step


def _signed(seed: int) -> int:
    """The low 64 bits of a seed, as int64."""
    seed &= (1 << 64) - 1
    return seed - (1 << 64) if seed >> 63 else seed
