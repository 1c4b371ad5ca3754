"""One optimiser step of a fine-tuning."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .. import optim
from ..modules.mode import plain_outputs
from ..optim import schedules
from .base import Example, Task
from .config import FinetuneConfig
from .predict import count_targets, to_device
from .world import make_engine


class Stepper:
    """One optimiser step a batch, by the engine that pre-training uses; AdamW with a linear schedule.

    Of several processes each takes every so many-th row of a batch; losses are weighted by their share of its labels.

    Attributes:
        count: steps so far.
        total: steps of the training.
    """

    def __init__(
        self, model: torch.nn.Module, task: Task, examples: Sequence[Example], config: FinetuneConfig, total: int
    ):
        self.model, self.task, self.examples, self.config, self.total = model, task, examples, config, total
        self.warmup = round(config.warmup * total) / total  # whole steps, as in transformers' schedule
        self.count = 0
        groups = optim.param_groups(model, config.weight_decay)
        optimizer = optim.AdamW(groups, lr=config.lr, eps=1e-6, correct_bias=config.correct_bias)
        self.engine = make_engine(model, optimizer, config)
        self._plain = plain_outputs(model)

    def step(self, indices: Sequence[int]) -> dict:
        """Trains on these examples; returns step, loss, grad_norm, lr and tokens."""
        engine = self.engine
        own = indices[min(engine.world.rank, len(indices) - 1) :: engine.world.size]
        batch, labels = self.task.collate([self.examples[index] for index in own])
        batch = batch.to(engine.device)
        labels = to_device(labels, engine.device)
        self.model.train()
        weight, tokens = 1.0, batch.num_tokens
        if engine.world.size > 1:
            # A batch with fewer rows than there are processes leaves some with a row that does not count.
            count = count_targets(labels, len(own)) if engine.world.rank < len(indices) else 0
            total, tokens = engine.reduce([count, tokens if count else 0])
            weight, tokens = count / max(total, 1), int(tokens)
        loss = engine.backward(lambda: engine.forward(batch, **labels, **self._plain).loss * weight)
        lr = self.config.lr * schedules.linear(self.count / self.total, self.warmup)
        loss, grad_norm = _numbers(loss, engine.step(lr))
        if not math.isfinite(grad_norm):
            engine.settle()  # where an engine counts such steps on its device, it raises here after too many
        self.count += 1
        (loss,) = engine.reduce([loss])
        return {"step": self.count, "loss": loss, "grad_norm": grad_norm, "lr": lr, "tokens": tokens}


def _numbers(loss: Tensor, norm: float | Tensor) -> tuple[float, float]:
    """Both on the host; a norm that is on the device comes with the loss, for each transfer waits for the device."""
    if not isinstance(norm, Tensor):
        return float(loss), norm
    loss, norm = torch.stack([loss.double(), norm.double()]).tolist()
    return loss, norm
