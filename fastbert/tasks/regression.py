"""Tasks with a number as the label of a text or a pair, trained by mean squared error."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Sequence

import numpy as np

from ..model_config import ModelConfig
from . import metrics
from .base import Example, Row
from .text import TextTask

_log = logging.getLogger("fastbert")

MANY = 10
"""The least number of predictions from which a scale can be told."""


class Regression(TextTask):
    """A number between two bounds, scored by correlation with the labels.

    Attributes:
        low, high: the bounds, to which predictions are clipped, since GLUE refuses files with others.
        to_check: whether the scale of a trained model's outputs has not been checked yet.
    """

    metrics: tuple[str, ...] = ("pearson", "spearman")
    low: float
    high: float
    to_check: bool = False

    def parse(self, text: str) -> float:
        try:
            value = math.nan if "_" in text else float(text)  # Python's 1_000 is an identifier elsewhere
        except ValueError:
            value = math.nan
        if not self.low <= value <= self.high or math.isinf(value):
            bounds = "" if math.isinf(self.high) else f" from {self.low:g} to {self.high:g}"
            raise ValueError(f"expected a number{bounds}, got {text!r}")
        return value

    def target(self, label: float) -> float:
        return float(label)

    def head(self) -> dict:
        return {"num_labels": 1, "problem_type": "regression"}

    def restore(self, config: ModelConfig) -> None:
        super().restore(config)
        self.to_check = True

    def decode(self, rows: Sequence[Row], examples: Sequence[Example], outputs: Sequence[np.ndarray]) -> list[float]:
        """The outputs within the bounds. Warns where a quarter of the first are beyond, as those of cross-encoders that
        a sigmoid follows: what is cut is alike, and correlates with nothing."""
        beyond = sum(not self.low <= float(value[0]) <= self.high for value in outputs)
        if self.to_check and len(outputs) >= MANY and 4 * beyond >= len(outputs):
            _log.warning(
                "expected a model of numbers from %g to %g, got %d of %d predictions beyond, which are cut to these "
                "bounds (text-regression cuts none)",
                self.low,
                self.high,
                beyond,
                len(outputs),
            )
        self.to_check = False
        return [min(max(float(value[0]), self.low), self.high) for value in outputs]

    def metric(self, rows: Sequence[Row], predictions: Sequence[float]) -> dict[str, float]:
        gold = [row.label for row in rows]
        return {"pearson": metrics.pearson(gold, predictions), "spearman": metrics.spearman(gold, predictions)}

    def guess(self, rows: Sequence[Row]) -> list[float]:
        return [sum(row.label for row in rows) / len(rows)] * len(rows)

    def far(self, gold: Sequence[float]) -> float:
        """The smallest absolute difference that `errors` lists, given all labels."""
        return 1.0

    def edges(self, gold: Sequence[float]) -> np.ndarray:
        """The edges of the intervals of labels in the table, in ascending order: intervals of length 1."""
        return np.append(np.arange(self.low, self.high), self.high)

    def tables(self, rows: Sequence[Row], predictions: Sequence[float]) -> dict[str, list[Sequence]]:
        """The mean prediction and the mean absolute difference for labels in each interval between `edges`."""
        table: list[Sequence] = [("gold", "mean_prediction", "mean_difference", "rows")]
        pairs = [(row.label, prediction) for row, prediction in zip(rows, predictions, strict=True)]
        edges = self.edges([row.label for row in rows])
        for low, high in itertools.pairwise(edges):
            inside = [(a, b) for a, b in pairs if low <= a < high or a == high == edges[-1]]
            if inside:
                mean = sum(b for _, b in inside) / len(inside)
                difference = sum(abs(a - b) for a, b in inside) / len(inside)
                table.append((f"{low:g} to {high:g}", mean, difference, len(inside)))
        return {"differences": table}

    def errors(self, rows: Sequence[Row], predictions: Sequence[float]) -> list[dict]:
        """The rows with differences of at least `far`, the largest first."""
        far = self.far([row.label for row in rows])
        listed = [
            {"id": row.id, "texts": list(row.texts), "label": row.label, "prediction": round(prediction, 4)}
            for row, prediction in zip(rows, predictions, strict=True)
            if abs(row.label - prediction) >= far
        ]
        return sorted(listed, key=lambda error: -abs(error["label"] - error["prediction"]))
