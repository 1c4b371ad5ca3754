"""Fine-tuning steps that the host only starts: batches are filled up to a few shapes, with one CUDA graph for each.

A batch of a fine-tuning has so few tokens that launching its thousand kernels takes the host several times as long as a
GPU needs for them. Its size is another in every step, so that it is rounded up: tokens to a sixteenth of the next power
of two, the longest sequence to 64, 128, 256 and so on. What is added are sequences of padding whose labels count for
nothing, 4 % of the tokens on average. A shape's first step runs as it is, its second is captured, later ones are
replayed. The losses and gradients are those of the batch itself, up to the order in which a product sums its tokens.

Without a CUDA device the same functions are called where they would be replayed, which is how they are tested.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .. import rng
from ..cuda_graphs import LEAST_TOKENS, Replay, on_stream, rounded_length, rounded_up, token_unit
from ..data.budget import BatchShape, fill_up
from ..packing import PackedBatch
from . import graph
from .capture import RandomPlace
from .engine import LocalEngine

# What the labels of added sequences are: no class, and a place past the end of every sequence.
_FILLINGS = {"labels": -100, "start_positions": 1 << 30, "end_positions": 1 << 30}
_LEAST = LEAST_TOKENS


def why_not(engine: LocalEngine) -> str | None:
    """None where the steps of an engine can have fixed shapes, else why not, in words."""
    if type(engine) is not LocalEngine:
        return "steps of several processes are not captured"
    if not getattr(engine.model, "fixed_shapes", True) or getattr(engine.model, "bilstm", None) is not None:
        return f"the layers of this {type(engine.model).__name__} read the lengths of sequences on the host"
    return graph.why_not(engine.device) if engine.device.type == "cuda" else None


def shape_of(batch: PackedBatch, sequences: int, longest: int) -> BatchShape:
    """The shape that a batch is filled up to.

    Args:
        sequences: as many as a full batch has; a batch may have more.
        longest: the longest sequence that the model takes.
    """
    longest = max(longest, batch.max_seqlen)
    max_seqlen = rounded_length(batch.max_seqlen, longest)
    unit = token_unit(batch.num_tokens, _LEAST)
    room = max(sequences, batch.num_sequences) + -(-unit // max_seqlen)
    return BatchShape(rounded_up(batch.num_tokens, unit), rounded_up(room, 8), 0, max_seqlen)


@dataclass
class _Place:
    """Where the steps of one shape read their batch."""

    batch: PackedBatch
    labels: dict[str, Any]
    replay: Replay
    steps: int = 0


class ShapedSteps:
    """Takes the place of `LocalEngine.backward` and ``step`` for batches whose labels can be filled up.

    Args:
        engine: its decisions are moved to the device.
        rows: of a full batch; a row may be several sequences, the choices of a question.
        longest: the longest sequence that the model takes.
        pad_id: the id of padding.
    """

    def __init__(self, engine: LocalEngine, rows: int, longest: int, pad_id: int = 0) -> None:
        if not engine.on_device:
            engine.decide_on_device()
        self.engine, self._rows, self._longest, self._pad_id = engine, rows, longest, pad_id
        device = engine.device
        self._captures = device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if self._captures else None
        self._pool = torch.cuda.graph_pool_handle() if self._captures else None
        self._random = RandomPlace(device)
        self._loss = torch.zeros((), device=device)
        self._places: dict[tuple, _Place] = {}
        # The update's tables need a step that was not captured before each capture.
        self._may_capture = False

    def takes(self, batch: PackedBatch, labels: dict[str, Any]) -> bool:
        """Whether the labels of a batch can be filled up so that what is added counts for nothing."""
        if batch.mlm_labels is not None or batch.nsp_labels is not None or not batch.num_sequences:
            return False
        choices = labels.get("num_choices", 1)
        tensors = {name: value for name, value in labels.items() if name != "num_choices"}
        if type(choices) is not int or not tensors or not set(tensors) <= set(_FILLINGS):
            return False
        sizes = {batch.num_tokens, batch.num_sequences // choices}
        return all(x.dtype == torch.int64 and x.dim() == 1 and len(x) in sizes for x in tensors.values())

    def run(self, batch: PackedBatch, labels: dict[str, Any], lr: float, options: dict[str, Any]) -> Tensor:
        """One step.

        Args:
            batch, labels: on the host; `takes` them.
            lr: the learning rate.
            options: more arguments of the model, the same in every call.

        Returns:
            (2,) float32 on the device, the loss and the norm of the gradient before clipping.
        """
        # Streams are of the current device, which the model's need not be; -1, of the host, changes nothing.
        with torch.cuda.device(self._loss.get_device()):
            return self._run(batch, labels, lr, options)

    def _run(self, batch: PackedBatch, labels: dict[str, Any], lr: float, options: dict[str, Any]) -> Tensor:
        engine, place = self.engine, self._load(batch, labels)
        engine.set_rate(lr)
        self._random.follow(engine)

        def step() -> None:
            self._step(place, options)

        # Gradients of an earlier step must not be what this one adds to: its backward pass writes.
        engine.optimizer.zero_grad(set_to_none=True)
        if place.replay.is_captured or (self._captures and place.steps and self._may_capture):
            self._may_capture = self._may_capture and place.replay.is_captured
            place.replay(step)
        elif self._captures:
            with on_stream(self._stream):
                step()
            self._may_capture = True
        else:
            step()
        # Memory of the graphs that the next one can take: a replay does not ask for it.
        engine.optimizer.zero_grad(set_to_none=True)
        place.steps += 1
        self._random.passed(engine)
        return torch.stack([self._loss, engine.norm])

    def _step(self, place: _Place, options: dict[str, Any]) -> None:
        engine = self.engine
        with rng.use(self._random.key(engine)), engine.autocast():
            loss = engine.forward(place.batch, **place.labels, **options).loss
        engine.scale.scaled(loss).backward()
        with torch.no_grad():
            self._random.advance()
            self._loss.copy_(loss)
        engine.update()

    def _load(self, batch: PackedBatch, labels: dict[str, Any]) -> _Place:
        """Copies a batch, filled up, to where the steps of its shape read it; from pinned memory nothing waits."""
        choices = labels.get("num_choices", 1)
        shape = shape_of(batch, self._rows * choices, self._longest)
        # Whole questions are added.
        shape = replace(shape, sequences=-(-shape.sequences // choices) * choices)
        filled = fill_up(batch, shape, self._pad_id)
        tensors = {name: x for name, x in labels.items() if name != "num_choices"}
        per_token = {name: len(x) == batch.num_tokens for name, x in tensors.items()}
        sizes = {name: shape.tokens if per_token[name] else shape.sequences // choices for name in tensors}
        given = [filled.input_ids, filled.token_type_ids, filled.position_ids, filled.cu_seqlens]
        for name, x in tensors.items():
            given.append(torch.cat([x, x.new_full((sizes[name] - len(x),), _FILLINGS[name])]))
        key = (shape, choices, *sorted(per_token.items()))
        if key not in self._places:
            moved = [torch.empty_like(x, device=self.engine.device) for x in given]
            read = PackedBatch(*moved[:4], shape.max_seqlen)
            kept = dict(zip(tensors, moved[4:], strict=True))
            if "num_choices" in labels:
                kept["num_choices"] = choices
            self._places[key] = _Place(read, kept, Replay(self._stream, self._pool))
        place = self._places[key]
        here = place.batch
        targets = [here.input_ids, here.token_type_ids, here.position_ids, here.cu_seqlens]
        targets += [place.labels[name] for name in tensors]
        for target, source in zip(targets, given, strict=True):
            target.copy_(source.pin_memory() if self._captures else source, non_blocking=True)
        return place
