"""One optimiser step of a fine-tuning."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import optim
from ..errors import InputError
from ..modules.mode import plain_outputs
from ..optim import schedules
from ..packing import PackedBatch
from ..train import shaped_steps
from ..train.precision import float32_products, use_float32_products
from . import layers
from .base import Example, Task
from .config import FinetuneConfig
from .predict import count_targets, to_device
from .world import make_engine


class Stepper:
    """Makes one optimiser step per batch with AdamW and a linear schedule, by the engine that pre-training uses.

    Of n processes, the one of rank r takes rows r, r + n, ... of a batch, and computes them in ``config.accumulate``
    micro-batches; losses are weighted by the share of labels.

    `close` takes back what ``freeze`` and ``activation_checkpointing`` changed, so that they end with the training.

    Args:
        model: trained in place; moved to the device of this process.
        task, examples: `step` collates batches of these examples by the task.
        config: the recipe.
        total: the steps of the training.

    Attributes:
        count: the number of steps so far.
        engine: the engine.

    Raises:
        InputError: ``cuda_graph: on`` for options, a model, an engine or a device that do not allow captured steps, or
            ``activation_checkpointing``, ``freeze`` or ``layer_decay`` for a model that cannot do it.
    """

    def __init__(
        self, model: torch.nn.Module, task: Task, examples: Sequence[Example], config: FinetuneConfig, total: int
    ):
        self.model, self.task, self.examples, self.config, self.total = model, task, examples, config, total
        self.warmup = round(config.warmup * total) / total  # whole steps, as in transformers' schedule
        self.count = 0
        with contextlib.ExitStack() as changes:
            self._change(changes)
            scales = None if config.layer_decay is None else layers.lr_scales(model, config.layer_decay)
            groups = optim.param_groups(model, config.weight_decay, lr_scales=scales)
            optimizer = optim.AdamW(groups, lr=config.lr, eps=1e-6, correct_bias=config.correct_bias)
            self.engine = make_engine(model, optimizer, config)
            self._plain = plain_outputs(model)
            self._shaped = self._shaped_steps()
            self._changes = changes.pop_all()

    def _change(self, changes: contextlib.ExitStack) -> None:
        """Changes the model as the recipe says; ``changes`` gets what takes that back, and leaves the user's own."""
        model, config = self.model, self.config
        if config.activation_checkpointing:
            if not getattr(model, "supports_gradient_checkpointing", False):
                raise InputError(f"activation_checkpointing needs a model of layers, got a {type(model).__name__}")
            if not getattr(model, "is_gradient_checkpointing", False):
                changes.callback(model.gradient_checkpointing_disable)
                model.gradient_checkpointing_enable()
        if config.freeze is not None:
            for parameter in layers.freeze(model, config.freeze):
                changes.callback(parameter.requires_grad_, True)

    def close(self) -> None:
        """Takes back the changes of the model, at the end of its training."""
        self._changes.close()

    def _shaped_steps(self) -> shaped_steps.ShapedSteps | None:
        """Steps as CUDA graphs; None if they are not wanted or not possible."""
        engine, wanted = self.engine, self.config.cuda_graph
        if wanted == "off" or (wanted == "auto" and engine.device.type != "cuda"):
            return None
        reason = "a step of several micro-batches is not captured" if self.config.accumulate > 1 else None
        reason = reason or shaped_steps.why_not(engine)
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
        device = self.engine.device
        with use_float32_products(float32_products(self.config.float32_matmul_precision, device), device):
            return self._step(indices)

    def _step(self, indices: Sequence[int]) -> dict:
        engine, world = self.engine, self.engine.world
        self.model.train()
        lr = self.config.lr * schedules.linear(self.count / self.total, self.warmup)
        parts = self._micro_batches(indices)
        batch, labels, _ = parts[0]
        if self._shaped is not None and self._shaped.takes(batch, labels):
            loss, grad_norm = self._shaped.run(batch, labels, lr, self._plain).tolist()
            return self._done(loss, grad_norm, lr, batch.num_tokens)
        # If a batch has fewer rows than there are processes, some repeat its last row, which does not count.
        own = world.rank < len(indices)
        counts = [count_targets(labels, rows) for _, labels, rows in parts] if own else [0]
        words = [_next_words(batch) for batch, _, _ in parts] if own else [0]
        tokens = sum(batch.num_tokens for batch, _, _ in parts) if own else 0
        total, tokens, all_words = engine.reduce([sum(counts), tokens, sum(words)])
        for (_, labels, _), count, number in zip(parts, counts, words, strict=True):
            if labels.get("lm_weight") and count and all_words:
                # This loss is a mean over words, and a part has another share of the step's words than of its labels.
                labels["lm_weight"] *= (number / all_words) / (count / total)
        losses = []
        for (batch, labels, _), count in zip(parts, counts, strict=True):
            last = len(losses) == len(parts) - 1
            losses.append(self._backward(batch, labels, count / max(total, 1), last))
        return self._done(*_numbers(sum(losses), engine.step(lr)), lr, int(tokens))

    def _micro_batches(self, indices: Sequence[int]) -> list[tuple[PackedBatch, dict[str, Any], int]]:
        """This rank's share of a batch, collated in parts: batch, labels and number of rows. All ranks have as many."""
        world = self.engine.world
        own = indices[min(world.rank, len(indices) - 1) :: world.size]
        count = min(self.config.accumulate, max(len(indices) // world.size, 1))
        parts = np.array_split(own, count)
        return [(*self.task.collate([self.examples[index] for index in part]), len(part)) for part in parts]

    def _backward(self, batch: PackedBatch, labels: dict[str, Any], weight: float, last: bool) -> Tensor:
        """Adds the gradients of a micro-batch; returns its loss, weighted by its share of the step's labels."""
        engine = self.engine
        batch, labels = batch.to(engine.device), to_device(labels, engine.device)
        return engine.backward(lambda: engine.forward(batch, **labels, **self._plain).loss * weight, last)

    def _done(self, loss: float, grad_norm: float, lr: float, tokens: int) -> dict:
        """Counts a step; returns its record."""
        engine = self.engine
        if not math.isfinite(grad_norm):
            engine.settle()  # an engine that counts skipped steps on the device raises TrainingDiverged here
        self.count += 1
        (loss,) = engine.reduce([loss])
        return {"step": self.count, "loss": loss, "grad_norm": grad_norm, "lr": lr, "tokens": tokens}


def _next_words(batch: PackedBatch) -> int:
    """The number of labels of the auxiliary language-model loss; 0 without it."""
    return 0 if batch.mlm_labels is None else len(batch.mlm_labels)


def _numbers(loss: Tensor, norm: float | Tensor) -> tuple[float, float]:
    """Both values on the host, by a single transfer if both are on the device."""
    if not isinstance(norm, Tensor):
        return float(loss), norm
    loss, norm = torch.stack([loss.double(), norm.double()]).tolist()
    return loss, norm
