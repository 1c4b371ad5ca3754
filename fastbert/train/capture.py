"""What captured training steps share (`graph`, `shaped_steps`): the seed and offset of dropout, in device memory."""

from __future__ import annotations

import torch

from .. import rng
from .engine import LocalEngine


class RandomPlace:
    """The seed and offset of dropout in device memory. A number from the host would stay as it was at the capture.

    Args:
        device: the model's device.
    """

    def __init__(self, device: torch.device) -> None:
        self._place = torch.zeros(2, dtype=torch.int64, device=device)
        self._known_for: int | None = None

    def follow(self, engine: LocalEngine) -> None:
        """Copies the engine's seed and offset to the device if the offset is not the one after the last `passed`: at
        the start, and after a checkpoint was loaded or a step was made without this object."""
        if self._known_for != engine.micro_step:
            self._place.copy_(torch.tensor([_signed(engine.seed), engine.micro_step], device="cpu"))
            self._known_for = engine.micro_step

    def key(self, engine: LocalEngine) -> rng.DropoutKey:
        """The key of the next forward pass."""
        return rng.DropoutKey(engine.seed, engine.micro_step, self._place)

    def advance(self) -> None:
        """Moves on to the next forward pass, on the device; part of the captured step."""
        self._place[1] += 1

    def passed(self, engine: LocalEngine) -> None:
        """Moves on to the next forward pass, on the host; called after each pass or replay."""
        engine.micro_step += 1
        self._known_for = engine.micro_step


def _signed(seed: int) -> int:
    """The low 64 bits of a seed, as int64."""
    seed &= (1 << 64) - 1
    return seed - (1 << 64) if seed >> 63 else seed
