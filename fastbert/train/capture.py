"""What captured training steps share: the place in the stream of dropout, in device memory."""

from __future__ import annotations

import torch

from .. import rng
from .engine import LocalEngine


class RandomPlace:
    """The place in the stream of dropout, in device memory: a graph's kernels read it there, where the host's number
    would stay that of the capture.

    Args:
        device: of the model.
    """

    def __init__(self, device: torch.device) -> None:
        self._place = torch.zeros(2, dtype=torch.int64, device=device)
        self._known_for: int | None = None

    def follow(self, engine: LocalEngine) -> None:
        """Writes the engine's place where it is not that after the last `passed`: at the start, after a checkpoint was
        loaded, or another step between."""
        if self._known_for != engine.micro_step:
            self._place.copy_(torch.tensor([_signed(engine.seed), engine.micro_step]))
            self._known_for = engine.micro_step

    def key(self, engine: LocalEngine) -> rng.DropoutKey:
        """What a forward pass draws by."""
        return rng.DropoutKey(engine.seed, engine.micro_step, self._place)

    def advance(self) -> None:
        """The next forward pass is another; on the device, within a graph."""
        self._place[1] += 1

    def passed(self, engine: LocalEngine) -> None:
        """The same on the host, after a pass or its replay."""
        engine.micro_step += 1
        self._known_for = engine.micro_step


def _signed(seed: int) -> int:
    """64 bits as torch's int64 holds them."""
    seed &= (1 << 64) - 1
    return seed - (1 << 64) if seed >> 63 else seed
