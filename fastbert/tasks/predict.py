"""Running a fine-tuned model over examples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..errors import FastbertError, InputError
from ..modules.mode import evaluating, plain_outputs
from .base import Example, Row, Task
from .batching import evaluation_batches

TOKEN_BUDGET = 8192


class NotFiniteError(FastbertError):
    """What a model says is no number: every decision made from it would be the first label."""


@dataclass(frozen=True)
class Outputs:
    """What a model said of each example, in the examples' order, and its mean loss over those that have a label, or the
    tokens of them that have one (None where none has)."""

    values: list[np.ndarray]
    loss: float | None


def to_device(keywords: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """What a task's `collate` gives for the model, its tensors on a device."""
    return {name: v.to(device) if isinstance(v, torch.Tensor) else v for name, v in keywords.items()}


def count_targets(keywords: dict[str, Any], rows: int) -> int:
    """How many labels a loss is the mean over: of classes of tokens those that count, else one a row."""
    values = keywords.get("labels")
    if values is None or values.is_floating_point():
        return rows
    return int((values != -100).sum())


def run_model(
    task: Task,
    model: torch.nn.Module,
    examples: Sequence[Example],
    token_budget: int = TOKEN_BUDGET,
    progress: Callable[[int], Any] | None = None,
) -> Outputs:
    """Raw outputs of all examples, without dropout; every part of the model is left in the mode it was in.

    Args:
        progress: called with the number of examples done by each batch.

    Raises:
        NotFiniteError: the model's weights have diverged or are damaged.
    """
    if not examples:
        raise InputError(f"task {task.name}: expected rows to predict, got none")
    device = next(model.parameters()).device
    plain = plain_outputs(model)
    values: list[Any] = [None] * len(examples)
    loss_sum, labelled = 0.0, 0
    with evaluating(model), torch.inference_mode():
        for indices in evaluation_batches([e.num_tokens for e in examples], token_budget):
            chosen = [examples[index] for index in indices]
            batch, keywords = task.collate(chosen)
            batch = batch.to(device)
            out = model(batch, **to_device(keywords, device), **plain)
            for index, value in zip(indices, task.outputs(out, batch), strict=True):
                if not np.isfinite(value).all():
                    raise NotFiniteError(
                        f"task {task.name}: expected finite numbers of the model, got {_first(value)}: its training "
                        "has diverged, which a smaller lr prevents, or its weights are damaged"
                    )
                values[index] = value
            count = 0 if out.loss is None else count_targets(keywords, sum(e.label is not None for e in chosen))
            if count:  # of no target the mean is no number
                loss_sum += float(out.loss) * count
                labelled += count
            if progress is not None:
                progress(len(chosen))
    return Outputs(values, loss_sum / labelled if labelled else None)


def _first(value: np.ndarray) -> float:
    """The first number that is none."""
    return float(np.extract(~np.isfinite(value), value)[0])


def predict(
    task: Task,
    model: torch.nn.Module,
    rows: Sequence[Row],
    examples: Sequence[Example],
    token_budget: int = TOKEN_BUDGET,
    progress: Callable[[int], Any] | None = None,
) -> list:
    """The task's predictions, one a row."""
    return task.decode(rows, examples, run_model(task, model, examples, token_budget, progress).values)
