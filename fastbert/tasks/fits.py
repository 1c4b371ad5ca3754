"""Whether a model can do what a task and its options ask of it: told before rows are read or a model trained."""

from __future__ import annotations

from ..errors import InputError
from .base import Task
from .config import TaskOptions
from .feature_task import FeatureTask
from .features import MIX, check_layers
from .text import TextTask

FROZEN = ("elmo", "static")
"""Kinds that no task trains: they are looked at."""


def check_model(task: Task, kind: str, layers: int, options: TaskOptions) -> None:
    """Raises InputError where a fine-tuning would end in one, whatever its rows are.

    Args:
        task: with the features that it is to be trained on, if any.
        kind, layers: model_type and number of layers of the model.
    """
    features = getattr(task, "features", None)
    if features is not None:
        if features != MIX:
            check_layers(features, max(layers, 1))  # static vectors are a layer of their own
    elif kind in FROZEN:
        raise InputError(f"a model of type {kind} is not fine-tuned, expected features, got none")
    elif kind != "bert" and task.name != "swag" and not isinstance(task, TextTask):
        expected = "features or a BERT" if isinstance(task, FeatureTask) else "a BERT"
        raise InputError(f"a model of type {kind} has no head for {task.name}, expected {expected}")
    if options.bilstm is not None and features is None and kind != "bert":
        raise InputError(f"a BiLSTM stands on a BERT, got bilstm for a model of type {kind}")
    if options.auxiliary_lm and (features is not None or kind in (*FROZEN, "bert")):
        raise InputError(f"auxiliary_lm is a loss of a GPT that is fine-tuned, got a model of type {kind}")
