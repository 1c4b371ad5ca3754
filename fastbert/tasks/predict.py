"""Running a fine-tuned model over examples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..errors import FastbertError, InputError
from ..modules.mode import evaluating, plain_outputs
from .base import IGNORE_INDEX, Example, Row, Task
from .batching import evaluation_batches

TOKEN_BUDGET = 8192


class NotFiniteError(FastbertError):
    """A model's output is NaN or infinite. Decoding would turn it into the first label without an error."""


@dataclass(frozen=True)
class Outputs:
    """A model's outputs.

    Args:
        values: one array per example, in the order of the examples (`Task.outputs`).
        loss: the mean loss over all labels, of examples or of tokens; None if there are none.
    """

    values: list[np.ndarray]
    loss: float | None


def to_device(keywords: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """The keyword arguments that a task's `collate` returned, with tensors moved to a device."""
    return {name: v.to(device) if isinstance(v, torch.Tensor) else v for name, v in keywords.items()}


def count_targets(keywords: dict[str, Any], rows: int) -> int:
    """The number of labels over which a loss is the mean: integer labels other than `IGNORE_INDEX`, otherwise the rows.

    Args:
        keywords: those of a task's `collate`.
        rows: rows with a label.
    """
    values = keywords.get("labels")
    if values is None or values.is_floating_point():
        return rows
    return int((values != IGNORE_INDEX).sum())


def run_model(
    task: Task,
    model: torch.nn.Module,
    examples: Sequence[Example],
    token_budget: int = TOKEN_BUDGET,
    progress: Callable[[int], Any] | None = None,
) -> Outputs:
    """Computes the outputs for all examples, without dropout; afterwards every module is in its former mode again.

    Args:
        task, model, examples: what to compute; there must be at least one example.
        token_budget: the most tokens in a batch; a longer sequence is a batch of its own.
        progress: called after each batch with the number of its examples.

    Raises:
        InputError: there are no examples.
        NotFiniteError: an output is NaN or infinite, because training diverged or the weights are damaged.
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
                        f"task {task.name}: expected finite outputs of the model, got {_first(value)}: its training "
                        "has diverged, which a smaller lr may prevent, or its weights are damaged"
                    )
                values[index] = value
            count = 0 if out.loss is None else count_targets(keywords, sum(e.label is not None for e in chosen))
            if count:  # without labels the mean loss is NaN
                loss_sum += float(out.loss) * count
                labelled += count
            if progress is not None:
                progress(len(chosen))
    return Outputs(values, loss_sum / labelled if labelled else None)


def _first(value: np.ndarray) -> float:
    """The first value that is NaN or infinite."""
    return float(np.extract(~np.isfinite(value), value)[0])


def predict(
    task: Task,
    model: torch.nn.Module,
    rows: Sequence[Row],
    examples: Sequence[Example],
    token_budget: int = TOKEN_BUDGET,
) -> list:
    """The task's predictions, one per row.

    Args:
        rows, examples: the rows, and what `Task.encode` made of them.
        token_budget: as in `run_model`, whose errors it raises.
    """
    return task.decode(rows, examples, run_model(task, model, examples, token_budget).values)
