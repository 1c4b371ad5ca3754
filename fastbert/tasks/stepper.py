"""One optimiser step of a fine-tuning."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .. import optim
from ..errors import InputError
from ..modules.mode import plain_outputs
from ..optim import schedules
from ..train import shaped_steps
from .base import Example, Task
from .config import FinetuneConfig
from .predict import count_targets, to_device
from .world import make_engine


class Stepper:
    """Makes one optimiser step per batch with AdamW and a linear schedule, by the engine that pre-training uses.

    Of n processes, the one of rank r takes rows r, r + n, ... of a batch; losses are weighted by the share of labels.

    Args:
        model: trained in place; moved to the device of this process.
        task, examples: `step` collates batches of these examples by the task.
        config: the recipe.
        total: the steps of the training.

    Attributes:
        count: the number of steps so far.
        engine: the engine.

    Raises:
        InputError: ``cuda_graph: on`` for a model, engine or device that does not allow captured steps.
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
        self._shaped = self._shaped_steps()

    def _shaped_steps(self) -> shaped_steps.ShapedSteps | None:
        """Steps as CUDA graphs; None if they are not wanted or not possible."""
        engine, wanted = self.engine, self.config.cuda_graph
        if wanted == "off" or (wanted == "auto" and engine.device.type != "cuda"):
            return None
        reason = shaped_steps.why_not(engine)
        if reason is not None:
            if wanted == "on":
                raise InputError(f"cuda_graph: on is not possible: {reason}")
            return None
        config, settings = self.config, self.model.config
        rows = 1 if config.token_budget is not None else config.batch_size
        longest = getattr(settings, "max_position_embeddings", config.max_seqlen)
        return shaped_steps.ShapedSteps(engine, rows, longest, getattr(settings, "pad_token_id", None) or 0)

    def step(self, indices: Sequence[int]) -> dict:
        """Makes a step on the examples of these indices; returns step, loss, grad_norm, lr and tokens."""
        engine = self.engine
        own = indices[min(engine.world.rank, len(indices) - 1) :: engine.world.size]
        batch, labels = self.task.collate([self.examples[index] for index in own])
        self.model.train()
        lr = self.config.lr * schedules.linear(self.count / self.total, self.warmup)
        if self._shaped is not None and self._shaped.takes(batch, labels):
            loss, grad_norm = self._shaped.run(batch, labels, lr, self._plain).tolist()
            return self._done(loss, grad_norm, lr, batch.num_tokens)
        batch = batch.to(engine.device)
        labels = to_device(labels, engine.device)
        weight, tokens = 1.0, batch.num_tokens
        if engine.world.size > 1:
            # If a batch has fewer rows than there are processes, some repeat its last row, which does not count.
            count = count_targets(labels, len(own)) if engine.world.rank < len(indices) else 0
            total, tokens = engine.reduce([count, tokens if count else 0])
            weight, tokens = count / max(total, 1), int(tokens)
        loss = engine.backward(lambda: engine.forward(batch, **labels, **self._plain).loss * weight)
        return self._done(*_numbers(loss, engine.step(lr)), lr, tokens)

    def _done(self, loss: float, grad_norm: float, lr: float, tokens: int) -> dict:
        """Counts a step; returns its record."""
        engine = self.engine
        if not math.isfinite(grad_norm):
            engine.settle()  # an engine that counts skipped steps on the device raises TrainingDiverged here
        self.count += 1
        (loss,) = engine.reduce([loss])
        return {"step": self.count, "loss": loss, "grad_norm": grad_norm, "lr": lr, "tokens": tokens}


def _numbers(loss: Tensor, norm: float | Tensor) -> tuple[float, float]:
    """Both values on the host, by a single transfer if both are on the device."""
    if not isinstance(norm, Tensor):
        return float(loss), norm
    loss, norm = torch.stack([loss.double(), norm.double()]).tolist()
    return loss, norm
