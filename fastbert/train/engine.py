"""One optimiser step, for pre-training and fine-tuning: the only place that runs a backward pass.

The loops use an engine through ``forward``, `backward`, `step`, `leave_out`, `settle`, `reduce`, `state`, `writing`,
`restore` and `whole_weights`. This is the engine of one process; `fastbert.train.engines` has those of several.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from torch import Tensor, nn

from .. import hardware, ops, rng
from ..errors import CheckpointError, FastbertError
from ..optim import clipped_step, device_step
from ..optim.base import MasterWeightOptimizer
from ..optim.rates import lr_scale
from . import checkpoint
from .distributed import World
from .loss_scale import LossScale
from .precision import Precision
from .timing import StepTimer


class TrainingDiverged(FastbertError):
    """The gradient was not finite in too many steps in a row."""


class LocalEngine:
    """Forward, backward and update in one process.

    Dropout of micro-step n of the run draws from (seed, n), so a resumed run needs no generator state. A step whose
    gradient is not finite is skipped and counted.

    On a CUDA device the rate, the loss scale, the verdict on a step and the counts live in device memory, and `step`
    returns before the device is done; `settle` brings the counts back.

    Attributes:
        world: this process among those that train together.
        forward: what to call for a forward pass, in place of the model.
        timer: measures the parts of a step.
        loss_scale: the factor on losses before the backward pass; with ``on_device``, as of the last `settle`.
        micro_step: the number of forward passes of the run so far, on all ranks.
        skipped: the number of skipped steps; with ``on_device``, as of the last `settle`.

    Args:
        model: trained in place.
        optimizer: over the model's parameters.
        precision: "fp32"; "bf16" or "fp16" for autocast on fp32 weights, fp16 with dynamic loss scaling; or "fp8"
            (`fastbert.train.precision`).
        clip: the largest norm of the gradient; a larger gradient is scaled down to it.
        seed: the seed of dropout.
        patience: this many skipped steps in a row end the training. In fp16, only steps count that were skipped at the
            smallest loss scale.
        on_device: whether all decisions are made on the device; None: on a CUDA device, with an optimiser of
            `fastbert.optim`.
    """

    world = World()
    loss_scale = 1.0
    # Whether ops may add to gradients themselves (`ops.gradients_in_place`); not if hooks wait for autograd's.
    gradients_in_place = True
    # Replaces values (n,) on the device by their maxima over the ranks, in place; None for a single rank.
    _largest_of_ranks: Callable[[Tensor], object] | None = None

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        precision: str = "fp32",
        clip: float = 1.0,
        seed: int = 0,
        patience: int = 5,
        on_device: bool | None = None,
    ) -> None:
        self.model, self.optimizer = model, optimizer
        self.forward: Callable = model
        self.precision, self.clip, self.seed, self.patience = precision, clip, seed, patience
        self.device = next(model.parameters()).device
        self.policy = Precision(precision, model, self.device)
        if self.device.type == "cpu":
            hardware.keep_freed_memory()
        self.parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self.timer = StepTimer(self.device)
        self.micro_step = 0
        self.skipped = 0
        self.scale = LossScale(self.device, precision == "fp16")
        self.loss_scale = float(self.scale.scale)
        self.on_device = False
        self._skipped_in_a_row = 0
        if on_device is None:
            on_device = self.device.type == "cuda" and isinstance(optimizer, MasterWeightOptimizer)
        if on_device:
            self.decide_on_device()

    def decide_on_device(self) -> None:
        """Keeps rate, norm, verdicts and counts in device memory from now on."""
        self.on_device = True
        self._lr = torch.zeros(1, device=self.device)
        self.norm = torch.zeros((), device=self.device)
        # Skipped steps; steps in a row that no loss scale could have saved; the most of the latter since `settle`.
        self._counts = torch.zeros(3, dtype=torch.int64, device=self.device)

    def autocast(self) -> AbstractContextManager:
        """The precision policy, for a forward pass outside `backward` too."""
        return self.policy.block()

    def backward(self, compute_loss: Callable[[], Tensor], last: bool = True) -> Tensor:
        """Runs a forward pass and adds its gradients; returns the loss, detached.

        Args:
            compute_loss: calls ``forward`` and returns the loss (). The losses of all ranks and micro-batches of a step
                are added up, so they must be weighted.
            last: whether this is the last micro-batch of the step.
        """
        with self.timer.part("forward"):
            loss = self._forward(compute_loss)
        with self.timer.part("backward"):
            self.scale.scaled(loss).backward()
        return loss.detach()

    def _forward(self, compute_loss: Callable[[], Tensor]) -> Tensor:
        key = rng.DropoutKey(self.seed, self.micro_step + self.world.rank)
        with rng.use(key), self.autocast(), ops.gradients_in_place(self.gradients_in_place):
            loss = compute_loss()
        self.micro_step += self.world.size
        return loss

    def leave_out(self) -> None:
        """Discards the gradients of this step: no update."""
        self.optimizer.zero_grad(set_to_none=True)
        self.policy.end_step(self._largest_of_ranks)

    def step(self, lr: float) -> float | Tensor:
        """Clips the gradients, updates the parameters and clears the gradients.

        Args:
            lr: the learning rate.

        Returns:
            the norm before clipping, with ``on_device`` a tensor () on the device.

        Raises:
            TrainingDiverged: the gradient was not finite for ``patience`` steps in a row; the parameters are those of
                the last good step. With ``on_device``, `settle` raises it.
        """
        if self.on_device:
            self.set_rate(lr)
            with self.timer.part("optimizer"):
                self.update()
            self.optimizer.zero_grad(set_to_none=True)
            return self.norm.clone()
        for group in self.optimizer.param_groups:
            group["lr"] = lr * lr_scale(group)
        with self.timer.part("optimizer"):
            norm = float(clipped_step(self.optimizer, self.clip, grad_scale=float(self.scale.inverse)))
        self.optimizer.zero_grad(set_to_none=True)
        self.policy.end_step(self._largest_of_ranks)
        hopeless = bool(self.scale.update(torch.tensor(math.isfinite(norm))))
        self.loss_scale = float(self.scale.scale)
        self._count(norm, hopeless)
        return norm

    def _count(self, norm: float, hopeless: bool = True) -> None:
        """Counts a step as skipped if its norm is not finite; ``hopeless``: no loss scale could have saved it."""
        skipped = not math.isfinite(norm)
        self.skipped += skipped
        self._skipped_in_a_row = self._skipped_in_a_row + 1 if skipped and hopeless else 0
        self._check(self._skipped_in_a_row)

    def set_rate(self, lr: float) -> None:
        """Sets the learning rate of the next `update`, in device memory."""
        self._lr.fill_(lr)

    @torch.no_grad()
    def update(self) -> None:
        """`step` with rate, norm and counts in device memory, so that a CUDA graph can capture it."""
        outcome = device_step(self.optimizer, self._lr, max_norm=self.clip, grad_scale=self.scale.inverse)
        self.norm.copy_(outcome.norm)
        hopeless = self.scale.update(outcome.finite)
        skipped, in_a_row, most = self._counts.unbind()
        skipped += (outcome.finite == 0).long()
        in_a_row.copy_((in_a_row + 1) * hopeless)
        most.copy_(torch.maximum(most, in_a_row))
        self.policy.end_step(self._largest_of_ranks)

    def settle(self) -> None:
        """Waits for the device and reads the counts from it. Raises TrainingDiverged as `step` does."""
        if not self.on_device:
            return
        self.optimizer.settle()
        skipped, _, most = self._counts.tolist()
        self._counts[::2].zero_()
        self.skipped += skipped
        self.loss_scale = float(self.scale.scale)
        self._check(most)

    def _check(self, skipped_in_a_row: int) -> None:
        if skipped_in_a_row >= self.patience:
            raise TrainingDiverged(
                f"training stopped: the gradient was not finite in {self.patience} steps in a row; the parameters are "
                "those of the last good step"
            )

    def reduce(self, values: Sequence[float]) -> list[float]:
        """Each value summed over the ranks."""
        return list(values)

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        """The values of all ranks, in the order of the ranks."""
        rank, size, count = self.world.rank, self.world.size, len(values)
        table = self.reduce([0.0] * (rank * count) + list(values) + [0.0] * ((size - 1 - rank) * count))
        return [table[r * count : (r + 1) * count] for r in range(size)]

    def state(self) -> tuple[dict[str, Tensor], dict]:
        """Weights and optimiser state for a checkpoint: tensors, and values that JSON can hold; the same on every rank.

        Counters are those of the whole run, so that a resume may have another number of ranks.
        """
        self.settle()
        tensors = {f"model.{name}": value.data for name, value in self.model.named_parameters()}
        more, numbers = checkpoint.optimizer_tensors(self.optimizer, list(self.model.named_parameters()))
        return tensors | more | self.policy.state(), {"optimizer": numbers, **self._counters()}

    def _counters(self) -> dict:
        scale = {"loss_scale": self.scale.state()} if self.scale.enabled else {}
        return {"micro_step": self.micro_step, "skipped": self.skipped, **scale}

    def writing(self) -> AbstractContextManager[Callable[[Path], None] | None]:
        """A context in which rank 0 writes a checkpoint; every rank enters it.

        Its value is a function for the argument ``more`` of `checkpoint.save`, which adds the engine's own files with
        the help of all ranks; None if there are none.
        """
        return nullcontext()

    def restore(self, path: Path, tensors: dict[str, Tensor], state: dict) -> None:
        """Restores what `state` returned and `writing` added.

        Args:
            path: the checkpoint, which has been verified.
            tensors, state: its contents (`checkpoint.load`).

        Raises:
            CheckpointError: it is a checkpoint of another model or engine.
        """
        if "deepspeed" in state:
            form = state["deepspeed"]
            raise CheckpointError(
                f"{path}: was written under DeepSpeed (ZeRO stage {form['stage']}), expected one written without, "
                f"since only DeepSpeed reads its shards; go on with --zero {form['stage']}, or start a new run from "
                "its model"
            )
        self._restore_weights(path, tensors)
        checkpoint.restore_optimizer(self.optimizer, list(self.model.named_parameters()), tensors, state["optimizer"])
        self.policy.restore(path, tensors)
        self._restore_counters(state)

    @torch.no_grad()
    def _restore_weights(self, path: Path, tensors: dict[str, Tensor]) -> None:
        weights = {name: value.data for name, value in self.model.named_parameters()}
        names = {name.removeprefix("model.") for name in tensors if name.startswith("model.")}
        if names != set(weights):
            raise CheckpointError(
                f"{path}: its tensors are not this model's: missing {sorted(set(weights) - names)[:3]}, unexpected "
                f"{sorted(names - set(weights))[:3]}"
            )
        for name, value in weights.items():
            saved = tensors[f"model.{name}"]
            if saved.shape != value.shape:
                raise CheckpointError(
                    f"{path}: {name} must be {tuple(value.shape)} for this model, got {tuple(saved.shape)}"
                )
            value.copy_(saved)

    def _restore_counters(self, state: dict) -> None:
        self.micro_step, self.skipped = state["micro_step"], state["skipped"]
        if "loss_scale" in state:  # not in a checkpoint of a run in another precision
            self.scale.restore(state["loss_scale"])
            self.loss_scale = float(self.scale.scale)

    def whole_weights(self) -> AbstractContextManager:
        """A context in which the model on rank 0 has all its parameters, whole; every rank enters it."""
        return nullcontext()
