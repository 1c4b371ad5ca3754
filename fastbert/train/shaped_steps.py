"""Fine-tuning steps in CUDA graphs: batches are padded to a few shapes, each of which has a graph.

A fine-tuning batch has so few tokens that launching its thousand kernels takes the host several times as long as a GPU
needs to run them. Batches differ in size, so sizes are rounded up: the number of tokens to a multiple of a sixteenth of
the next power of two, the longest sequence to 64 or a multiple of 128. The added tokens, 4 % on average, are sequences
of padding whose labels do not count. The first step of a shape runs uncaptured, the second is captured, later ones are
replayed. After `MOST_GRAPHS` captures, further shapes stay uncaptured. Losses and gradients are those of the batch
itself, except for the order in which matrix products sum over tokens.

Without a CUDA device the same functions are called directly instead of replayed, which is how they are tested.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .. import rng
from ..data.budget import BatchShape, fill_up
from ..graph_capture import LEAST_TOKENS, Replay, on_stream, rounded_length, rounded_up, token_unit
from ..models import BertForSequenceClassification
from ..models.logits import classification_loss
from ..optim.device import Snapshot, follow_writes
from ..packing import PackedBatch
from . import graph
from .capture import Captures, DropoutState
from .engine import LocalEngine

# The labels of added sequences: the index that the loss ignores, and a position past the end of every sequence.
_FILLINGS = {"labels": -100, "start_positions": 1 << 30, "end_positions": 1 << 30}
# The most graphs of a run, of some megabytes each. No graph is removed for a further shape: it is a rare one, and a
# capture takes the host as long as several steps.
MOST_GRAPHS = 64


def why_not(engine: LocalEngine) -> str | None:
    """None if the steps of an engine can have fixed shapes, otherwise the reason, in words."""
    if type(engine) is not LocalEngine:
        return "steps of several processes are not captured"
    if getattr(engine.model, "is_gradient_checkpointing", False):
        return graph.RECOMPUTES
    if not getattr(engine.model, "fixed_shapes", True) or getattr(engine.model, "bilstm", None) is not None:
        return f"the layers of this {type(engine.model).__name__} read the lengths of sequences on the host"
    if getattr(engine.model.config, "problem_type", None) == "multi_label_classification":
        return "the loss of several labels a text has no way to leave out the rows that are added"
    return graph.why_not(engine) if engine.device.type == "cuda" else None


def shape_of(batch: PackedBatch, sequences: int, longest: int) -> BatchShape:
    """The shape that a batch is padded to.

    Args:
        sequences: the number of sequences in a full batch; a batch may have more.
        longest: the length of the longest sequence that the model accepts, in tokens.
    """
    longest = max(longest, batch.max_seqlen)
    max_seqlen = rounded_length(batch.max_seqlen, longest)
    unit = token_unit(batch.num_tokens, LEAST_TOKENS)
    room = max(sequences, batch.num_sequences) + -(-unit // max_seqlen)
    return BatchShape(rounded_up(batch.num_tokens, unit), rounded_up(room, 8), 0, max_seqlen)


@dataclass
class _ShapedStep:
    """The steps of one shape: the tensors from which they read their batch, their graph, and how many there were."""

    batch: PackedBatch
    labels: dict[str, Any]
    rows: Tensor  # (), how many of the labels count
    replay: Replay
    steps: int = 0


class ShapedSteps:
    """Optimiser steps in place of `LocalEngine.backward` and ``step``, for batches whose labels can be padded.

    Args:
        engine: the engine; from now on it decides on the device (`LocalEngine.decide_on_device`).
        rows: the number of rows in a full batch; a row may be several sequences, such as the choices of a question.
        longest: the length of the longest sequence that the model accepts, in tokens.
        pad_id: the id of the padding token.
    """

    def __init__(self, engine: LocalEngine, rows: int, longest: int, pad_id: int = 0) -> None:
        if not engine.on_device:
            engine.decide_on_device()
        self.engine, self._rows, self._longest, self._pad_id = engine, rows, longest, pad_id
        device = engine.device
        self._captures = Captures(device)
        self._random = DropoutState(device)
        self._loss = torch.zeros((), device=device)
        self._by_shape: dict[tuple, _ShapedStep] = {}
        # The optimiser's tables of addresses require an uncaptured step before each capture.
        self._may_capture = False
        self._graphs = 0
        self._captured_from: Snapshot | None = None

    def takes(self, batch: PackedBatch, labels: dict[str, Any]) -> bool:
        """Whether the labels of a batch can be padded with values that do not count."""
        if batch.mlm_labels is not None or batch.nsp_labels is not None or not batch.num_sequences:
            return False
        choices = labels.get("num_choices", 1)
        tensors = {name: value for name, value in labels.items() if name != "num_choices"}
        if type(choices) is not int or not tensors or not set(tensors) <= set(_FILLINGS):
            return False
        if self._is_regression(labels):
            return labels["labels"].shape == (batch.num_sequences,)
        sizes = {batch.num_tokens, batch.num_sequences // choices}
        return all(x.dtype == torch.int64 and x.dim() == 1 and len(x) in sizes for x in tensors.values())

    def _is_regression(self, labels: dict[str, Any]) -> bool:
        """Whether the loss is the mean squared error of one number per row."""
        model = self.engine.model
        if type(model) is not BertForSequenceClassification or labels.keys() != {"labels"} or model.num_labels != 1:
            return False
        return model.config.problem_type in (None, "regression")

    def run(self, batch: PackedBatch, labels: dict[str, Any], lr: float, options: dict[str, Any]) -> Tensor:
        """Makes one step.

        Args:
            batch, labels: on the host; `takes` must be true of them.
            lr: the learning rate.
            options: further arguments of the model, the same in every call.

        Returns:
            (2,) float32 on the device: the loss, and the norm of the gradient before clipping.
        """
        with self._captures.on_device():
            return self._run(batch, labels, lr, options)

    def _run(self, batch: PackedBatch, labels: dict[str, Any], lr: float, options: dict[str, Any]) -> Tensor:
        if self._captured_from is not None and not self._captured_from.is_of(self.engine.optimizer):
            self._forget()
        follow_writes(self.engine.optimizer)
        engine, shaped, captures = self.engine, self._load(batch, labels), self._captures
        engine.set_rate(lr)
        self._random.follow(engine)

        def step() -> None:
            self._step(shaped, options)

        # Without gradients the backward pass writes instead of adding to those of an earlier step.
        engine.optimizer.zero_grad(set_to_none=True)
        is_captured = shaped.replay.is_captured
        if is_captured or (captures.enabled and shaped.steps and self._may_capture and self._graphs < MOST_GRAPHS):
            self._may_capture = self._may_capture and is_captured
            self._graphs += not is_captured
            shaped.replay(step)
        elif captures.enabled:
            with on_stream(captures.stream):
                step()
            self._may_capture = True
        else:
            step()
        # Frees the gradients' memory in the graphs' pool, which the next capture can then use; a replay needs none.
        engine.optimizer.zero_grad(set_to_none=True)
        if not is_captured:
            self._captured_from = Snapshot(engine.optimizer)
        shaped.steps += 1
        self._random.passed(engine)
        return torch.stack([self._loss, engine.norm])

    def _forget(self) -> None:
        """Drops all graphs: what they were captured from is no longer the optimiser's."""
        self._captures = graph.fresh(self._captures, self.engine.device)
        self._by_shape.clear()
        self._may_capture, self._graphs, self._captured_from = False, 0, None

    def _step(self, shaped: _ShapedStep, options: dict[str, Any]) -> None:
        engine = self.engine
        with rng.use(self._random.key(engine)), engine.autocast():
            if self._is_regression(shaped.labels):
                logits = engine.forward(shaped.batch, **options).logits
                loss = _regression_loss(logits, **shaped.labels, rows=shaped.rows)
            else:
                loss = engine.forward(shaped.batch, **shaped.labels, **options).loss
        engine.scale.scaled(loss).backward()
        with torch.no_grad():
            self._random.advance()
            self._loss.copy_(loss)
        engine.update()

    def _load(self, batch: PackedBatch, labels: dict[str, Any]) -> _ShapedStep:
        """Pads a batch and copies it into the tensors that steps of its shape read, which are made if there are none
        yet."""
        choices = labels.get("num_choices", 1)
        shape = shape_of(batch, self._rows * choices, self._longest)
        # Only whole questions are added.
        shape = replace(shape, sequences=rounded_up(shape.sequences, choices))
        filled = fill_up(batch, shape, self._pad_id)
        tensors = {name: x for name, x in labels.items() if name != "num_choices"}
        per_token = {name: len(x) == batch.num_tokens for name, x in tensors.items()}
        sizes = {name: shape.tokens if per_token[name] else shape.sequences // choices for name in tensors}
        given = [filled.input_ids, filled.token_type_ids, filled.position_ids, filled.cu_seqlens]
        for name, x in tensors.items():
            given.append(torch.cat([x, x.new_full((sizes[name] - len(x),), _FILLINGS[name])]))
        given.append(torch.tensor(batch.num_sequences // choices, device="cpu"))
        key = (shape, choices, *sorted(per_token.items()))
        if key not in self._by_shape:
            moved = [torch.empty_like(x, device=self.engine.device) for x in given]
            read = PackedBatch(*moved[:4], shape.max_seqlen)
            kept = dict(zip(tensors, moved[4:-1], strict=True))
            if "num_choices" in labels:
                kept["num_choices"] = choices
            self._by_shape[key] = _ShapedStep(read, kept, moved[-1], self._captures.replay())
        shaped = self._by_shape[key]
        here = shaped.batch
        targets = [here.input_ids, here.token_type_ids, here.position_ids, here.cu_seqlens]
        self._captures.load([*targets, *(shaped.labels[name] for name in tensors), shaped.rows], given)
        return shaped


def _regression_loss(logits: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
    """The mean squared error () over the first rows of a padded batch. The other rows get their own predictions as
    labels, so that their error is 0.

    Args:
        logits: (B, 1) floating.
        labels: (B,).
        rows: () int64, the number of rows that count; on the device, since the host must not read it.
    """
    counts = torch.arange(len(labels), device=labels.device) < rows
    labels = torch.where(counts, labels.to(logits.dtype), logits.detach().view(-1))
    return classification_loss(logits, labels, 1, "regression") * (len(labels) / rows).to(logits.dtype)
