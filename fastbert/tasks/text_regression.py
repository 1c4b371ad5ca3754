"""Regression of any texts: numbers of whatever size the training file has."""

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
    """Files of one's own, whose labels are numbers.

    The model learns how many standard deviations a number is above the mean of the training rows: a head that starts at
    0 comes to prices in thousands in no three epochs. Both are kept in its configuration.

    Attributes:
        mean, deviation: of the training rows; 0 and 1 of a model that does not say, such as somebody else's.
    """

    name = "text-regression"
    low, high = -math.inf, math.inf
    mean, deviation = 0.0, 1.0

    def learn(self, rows: Sequence[Row]) -> None:
        labels = np.array([row.label for row in rows if row.label is not None])
        if labels.min() == labels.max():
            raise DataError(f"expected different numbers as labels of the training rows, got {labels[0]:g} in all")
        self.mean, self.deviation = float(labels.mean()), float(labels.std())

    def restore(self, config: ModelConfig) -> None:
        super().restore(config)
        self.mean = float(getattr(config, "label_mean", self.mean))
        self.deviation = float(getattr(config, "label_deviation", self.deviation))

    def settle(self, rows: Sequence[Row], predictions: Sequence[float], config: ModelConfig) -> list[float]:
        config.label_mean, config.label_deviation = self.mean, self.deviation
        return super().settle(rows, predictions, config)

    def target(self, label: float) -> float:
        return (label - self.mean) / self.deviation

    def decode(self, rows: Sequence[Row], examples: Sequence[Example], outputs: Sequence[np.ndarray]) -> list[float]:
        return [number * self.deviation + self.mean for number in super().decode(rows, examples, outputs)]

    def far(self, gold: Sequence[float]) -> float:
        return float(np.std(gold))

    def edges(self, gold: Sequence[float]) -> np.ndarray:
        return np.linspace(min(gold), max(gold), 11)
