"""Whether a model supports a task and its options, checked before rows are read."""

from __future__ import annotations

from ..errors import InputError
from .base import Task
from .config import FinetuneConfig
from .feature_task import FeatureTask
from .features import MIX, check_layers
from .text import TextTask

FROZEN = ("elmo", "static")
"""Kinds of models of which only the features can be used."""


def check_model(task: Task, kind: str, layers: int, options: FinetuneConfig) -> None:
    """Raises InputError if fine-tuning would fail whatever the rows are.

    Args:
        task: with ``features`` set, if a head is to be trained on features.
        kind, layers: model_type and number of layers of the model.
        options: the recipe.
    """
    check_freeze(options.freeze, layers)
    if options.layer_decay is not None and options.freeze is not None and options.freeze >= layers - 1:
        raise InputError(
            f"layer_decay would change nothing: of the model's {layers} layers, freeze {options.freeze} leaves the top "
            "one at most, which has the rate of lr"
        )
    features = getattr(task, "features", None)
    if features is not None:
        if features != MIX:
            check_layers(features, max(layers, 1))  # static vectors count as one layer
    elif kind in FROZEN:
        raise InputError(f"a model of type {kind} cannot be fine-tuned, expected features, got none")
    elif kind != "bert" and task.name != "swag" and not isinstance(task, TextTask):
        expected = "features or a BERT" if isinstance(task, FeatureTask) else "a BERT"
        raise InputError(f"a model of type {kind} has no head for {task.name}, expected {expected}")
    if options.bilstm is not None and features is None and kind != "bert":
        raise InputError(f"bilstm needs a BERT, got a model of type {kind}")
    if options.auxiliary_lm and (features is not None or kind in (*FROZEN, "bert")):
        raise InputError(f"auxiliary_lm is a loss of a GPT that is fine-tuned, got a model of type {kind}")


def check_freeze(count: int | None, layers: int) -> None:
    """Raises InputError unless a model of so many layers has ``count`` of them to freeze."""
    if count is not None and count > layers:
        raise InputError(f"freeze must be at most the model's number of layers, {layers}, got {count}")
