"""Dynamic loss scaling for float16 (Micikevicius et al., "Mixed precision training", ICLR 2018, section 3.2).

Gradients below 6e-8 underflow to zero in float16, so the loss is multiplied by a scale before the backward pass, and
gradients are divided by it afterwards. If they overflow, the step is skipped and the scale halved; after many good
steps it is doubled.
"""

from __future__ import annotations

import torch
from torch import Tensor

_FIRST, _LEAST, _MOST = 2.0**16, 1.0, 2.0**24


class LossScale:
    """The scale and its history, in tensors on the device, so that the host need not wait for the gradients.

    If several processes train one model, each must be told whether the gradients of all of them are finite; then all
    scales stay equal.

    Args:
        device: the device of the losses.
        enabled: False keeps the scale at 1.
        interval: the number of good steps in a row after which the scale is doubled.

    Attributes:
        scale, inverse: (1,) float32, the scale and its reciprocal.
    """

    def __init__(self, device: torch.device, enabled: bool, interval: int = 2000) -> None:
        self.enabled, self.interval = enabled, interval
        self.scale = torch.full((1,), _FIRST if enabled else 1.0, device=device)
        self.inverse = 1.0 / self.scale
        self._good = torch.zeros(1, dtype=torch.int32, device=device)

    def scaled(self, loss: Tensor) -> Tensor:
        """The loss times the scale, for the backward pass."""
        return loss * self.scale[0].to(loss.dtype) if self.enabled else loss

    @torch.no_grad()
    def update(self, finite: Tensor) -> Tensor:
        """Updates the scale after a step, without waiting for the device.

        Args:
            finite: () of any dtype, on the device; whether the gradients were finite.

        Returns:
            () bool: whether they were not, and no smaller scale is left to try.
        """
        finite = finite.bool()
        if not self.enabled:
            return ~finite
        hopeless = ~finite & (self.scale[0] <= _LEAST)
        good = torch.where(finite, self._good + 1, torch.zeros_like(self._good))
        grows = good >= self.interval
        factor = torch.where(finite, torch.where(grows, 2.0, 1.0), torch.full_like(self.scale, 0.5))
        self.scale.copy_((self.scale * factor).clamp(_LEAST, _MOST))
        self.inverse.copy_(1.0 / self.scale)
        self._good.copy_(torch.where(grows, torch.zeros_like(good), good))
        return hopeless

    def state(self) -> dict:
        """What a checkpoint stores; waits for the device."""
        return {"scale": float(self.scale), "good": int(self._good)}

    def restore(self, state: dict) -> None:
        """Restores `state` in place, since a captured step reads these tensors."""
        if self.enabled:
            self.scale.fill_(state["scale"])
            self.inverse.copy_(1.0 / self.scale)
            self._good.fill_(state["good"])
