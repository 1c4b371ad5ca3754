"""One optimiser step, for pre-training and fine-tuning alike: the only place that runs a backward pass."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from .. import hardware, rng
from ..errors import FastbertError
from ..optim import clipped_step


class TrainingDiverged(FastbertError):
    """Loss or gradient was not finite for too many steps in a row."""


class LocalEngine:
    """Forward, backward and update in one process.

    Dropout of micro-step n draws from (seed, n), so a resumed run needs no generator state. A step whose gradient is
    not finite is skipped and counted.

    Args:
        model: trained in place.
        optimizer: over the model's parameters.
        precision: "fp32", or "bf16" for autocast on fp32 weights.
        clip: largest norm of the gradient.
        seed: of dropout.
        patience: that many skipped steps in a row end the training.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        precision: str = "fp32",
        clip: float = 1.0,
        seed: int = 0,
        patience: int = 5,
    ) -> None:
        self.model, self.optimizer = model, optimizer
        self.precision, self.clip, self.seed, self.patience = precision, clip, seed, patience
        self.device = next(model.parameters()).device
        if self.device.type == "cpu":
            hardware.keep_freed_memory()
        self.parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self.micro_step = 0
        self.skipped = 0
        self._skipped_in_a_row = 0

    def autocast(self) -> torch.autocast:
        """The precision policy, for a forward pass outside `backward` too."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16")

    def backward(self, compute_loss: Callable[[], Tensor]) -> Tensor:
        """Runs a forward pass and adds its gradients; returns the loss, detached."""
        with rng.use(rng.DropoutKey(self.seed, self.micro_step)), self.autocast():
            loss = compute_loss()
        loss.backward()
        self.micro_step += 1
        return loss.detach()

    def step(self, lr: float) -> float:
        """Clips, updates, clears the gradients; returns the norm before clipping.

        Raises:
            TrainingDiverged: the gradient was not finite for ``patience`` steps in a row; parameters are those of the
                last good step.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        norm = float(clipped_step(self.optimizer, self.clip))
        if math.isfinite(norm):
            self._skipped_in_a_row = 0
        else:
            self.skipped += 1
            self._skipped_in_a_row += 1
        self.optimizer.zero_grad(set_to_none=True)
        if self._skipped_in_a_row >= self.patience:
            raise TrainingDiverged(
                f"training stopped: the gradient was not finite in {self.patience} steps in a row (norm {norm}); "
                "the parameters are those of the last good step"
            )
        return norm
