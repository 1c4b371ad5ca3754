"""What the task heads of all kinds of models share: the loss of a classifier or regressor, and logits of choices."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import ops
from ..errors import InputError
from ..wording import dtype_name
from .checks import check_labels, check_tensors


def classification_loss(logits: Tensor, labels: Tensor, num_labels: int, problem_type: str | None) -> Tensor:
    """The loss of a classifier or regressor.

    Args:
        logits: (B, num_labels).
        labels: (B,) class ids, (B,) or (B, num_labels) numbers, or (B, num_labels) zeros and ones.
        problem_type: "regression", "single_label_classification", "multi_label_classification", or None to decide by
            the labels: num_labels 1 is regression, integers are classes, anything else is multi-label.

    Returns:
        (), mean squared error, cross-entropy or binary cross-entropy.

    Raises:
        InputError: labels are not a tensor of such a shape, or a class id is neither -100 nor in 0..num_labels-1.
    """
    check_tensors(labels=labels)
    several = "zeros and ones for multi-label classification"
    if problem_type is None:
        several += ", or int64 (B,) for one class each"
        integral = not labels.is_floating_point()
        problem_type = (
            "regression"
            if num_labels == 1
            else "single_label_classification"
            if integral
            else "multi_label_classification"
        )
    if problem_type == "regression":
        shape = logits.squeeze(-1) if num_labels == 1 else logits
        _check_numbers(labels, logits, labels.numel() == logits.numel(), "numbers for regression")
        return F.mse_loss(shape, labels.to(shape.dtype).view_as(shape))
    if problem_type == "multi_label_classification":
        _check_numbers(labels, logits, labels.shape == logits.shape, several)
        return F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype))
    labels = labels.view(-1)
    check_labels(labels, num_labels)
    return ops.cross_entropy(logits.view(-1, num_labels), labels)


def _check_numbers(labels: Tensor, logits: Tensor, fits: bool, what: str) -> None:
    """Raises InputError unless there is one number for each of the logits (``fits``)."""
    if not fits:
        dtype = dtype_name(labels.dtype)
        raise InputError(f"labels must be {tuple(logits.shape)} {what}, got {tuple(labels.shape)} {dtype}")


def choice_logits(scores: Tensor, num_choices: int | Sequence[int]) -> Tensor:
    """Puts the scores of all choices into a row for each question.

    Args:
        scores: (N, 1), those of a question next to each other.
        num_choices: C, the number of choices of every question, or a list of numbers of which C is the largest.

    Returns:
        (B, C). Missing choices of a question have the dtype's lowest number: their probability is 0, and they get no
        gradient.

    Raises:
        InputError: the numbers do not fit.
    """
    num_scores = scores.shape[0]
    # In an export with a dynamic number of choices it is a SymInt, in a trace a tensor.
    alike = isinstance(num_choices, (int, torch.SymInt)) or getattr(num_choices, "ndim", 1) == 0
    if alike:
        fits = num_choices > 0 and num_scores % num_choices == 0
    else:
        fits = min(num_choices, default=0) > 0 and sum(num_choices) == num_scores
    if not fits:
        raise InputError(
            f"a packed batch must hold num_choices = {num_choices} sequences for each question, got {num_scores} "
            "sequences"
        )
    if alike:
        return scores.view(-1, num_choices)
    lengths = torch.tensor(num_choices, device=scores.device)
    there = torch.arange(max(num_choices), device=scores.device) < lengths[:, None]
    return scores.new_full(there.shape, torch.finfo(scores.dtype).min).masked_scatter(there, scores)
