"""Regression on the user's own files, with labels of any magnitude."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..errors import DataError
from ..model_config import ModelConfig
from .base import Example, Row
from .regression import Regression
from .text_classification import OwnFiles


class TextRegression(OwnFiles, Regression):
    """The user's own files, with numbers as labels.

    The model is trained on standardised labels: starting at 0, it would not reach values in the thousands within three
    epochs. Mean and deviation are stored in its configuration.

    Attributes:
        mean, deviation: mean and standard deviation of the training labels; 0 and 1 for a model without them.
    """

    name = "text-regression"
    low, high = -math.inf, math.inf
    mean, deviation = 0.0, 1.0

    def learn(self, rows: Sequence[Row], used: Sequence[Row] | None = None) -> None:
        labels = np.array([row.label for row in (rows if used is None else used) if row.label is not None])
        if labels.min() == labels.max():
            raise DataError(f"expected different numbers as labels of the training rows, got {labels[0]:g} in all")
        self.mean, self.deviation = float(labels.mean()), float(labels.std())

    def restore(self, config: ModelConfig) -> None:
        super().restore(config)
        self.mean = float(getattr(config, "label_mean", self.mean))
        self.deviation = float(getattr(config, "label_deviation", self.deviation))

    def settle(self, rows: Sequence[Row], predictions: Sequence[float], config: ModelConfig) -> list[float]:
        settled = super().settle(rows, predictions, config)
        config.label_mean, config.label_deviation = self.mean, self.deviation
        return settled

    def target(self, label: float) -> float:
        return (label - self.mean) / self.deviation

    def decode(self, rows: Sequence[Row], examples: Sequence[Example], outputs: Sequence[np.ndarray]) -> list[float]:
        return [number * self.deviation + self.mean for number in super().decode(rows, examples, outputs)]

    def far(self, gold: Sequence[float]) -> float:
        return float(np.std(gold))

    def edges(self, gold: Sequence[float]) -> np.ndarray:
        return np.linspace(min(gold), max(gold), 11)
