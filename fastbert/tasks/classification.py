"""Tasks with one label for a text or a pair; a subclass only has to name its labels and columns."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from ..errors import CheckpointError, InputError
from ..model_config import ModelConfig
from . import metrics
from .base import Example, Row, softmax
from .files import shorten
from .heads import class_names, order_of, unnamed
from .text import TextTask

_log = logging.getLogger("fastbert")


CLASS_COLUMNS = ("label", "precision", "recall", "f1", "rows")
"""The header of the table of classes."""


def class_scores(right: int, rows: int, predicted: int) -> tuple[float, float, float, int]:
    """A line of the table of classes after its name, 0 where a share is undefined.

    Args:
        right: the rows with this label for which it was predicted.
        rows, predicted: the rows with it, and those for which it was predicted.
    """
    shares = right / max(predicted, 1), right / max(rows, 1), 2 * right / max(rows + predicted, 1)
    return *map(float, shares), int(rows)


class Classification(TextTask):
    """One of C labels for a text or a pair.

    Attributes:
        labels: as they are written in the files, in the order of the class ids.
        label_names: their names in the model's configuration; None for `labels` themselves.
        metrics: some of "accuracy", "matthews" and "f1" (of the last label); the first chooses the best epoch.
    """

    metrics: tuple[str, ...] = ("accuracy",)
    labels: tuple[str, ...] = ()
    label_names: tuple[str, ...] | None = None

    def parse(self, text: str) -> str:
        # In SNLI and MultiNLI, - in this column marks rows without a majority label; elsewhere it may be a class.
        if text == "-" and self.label_column == "gold_label":
            raise ValueError("expected a label that most annotators chose, got '-', which says that there is none")
        if self.labels and text not in self.labels:
            raise ValueError(f"expected the label to be one of {', '.join(self.labels)}, got {text!r}")
        if not text:
            raise ValueError("expected a label, got an empty one")
        return text

    def target(self, label: str) -> int:
        return self.labels.index(self.parse(label))

    @property
    def classes(self) -> tuple[Sequence[str], ...]:
        return (self.labels,) if self.label_names is None else (self.label_names, self.labels)

    def restore(self, config: ModelConfig) -> None:
        """Takes the order of the classes from a model that names them: published models have MNLI's in any order.

        Warns if the model's classes have other names, as in a model for another task, or if it names none of three or
        more classes.

        Raises:
            CheckpointError: the model has named classes, but not as many as the task.
            InputError: its class ids leave some out.
        """
        super().restore(config)
        names = [name.lower() for name in class_names(config)]
        if self._take_order(names) or not self.labels:
            return
        if unnamed(names):
            # Default names. Their number tells nothing either, since a configuration without names has two.
            if len(type(self).labels) > 2:  # two classes hardly ever have another order
                _log.warning(
                    "expected a model that names its classes (id2label), got one that does not: they are taken in the "
                    "task's order, %s, which published models of %s do not all have",
                    ", ".join(self.labels),
                    self.name,
                )
            return
        expected = f"expected a model whose classes are {', '.join(self.label_names or self.labels)}"
        if len(names) != len(self.labels):
            raise CheckpointError(f"{expected}, got one of {shorten(', '.join(names))}")
        _log.warning("%s, got one of %s: they are taken in this order", expected, shorten(", ".join(names)))

    def _take_order(self, names: Sequence[str]) -> bool:
        """Puts the labels into the order of a model's class names in lower case; False if these are not the task's."""
        order = order_of(names, self.classes)
        if order is None:
            return False
        self.labels = tuple(self.labels[i] for i in order)
        self.label_names = self.label_names and tuple(self.label_names[i] for i in order)
        return True

    def head(self) -> dict:
        """The configuration of the head: the names of its labels."""
        if len(self.labels) < 2:
            raise InputError(f"task {self.name} needs at least two labels, got {list(self.labels)}")
        return {
            "id2label": dict(enumerate(self.label_names or self.labels)),
            "problem_type": "single_label_classification",  # overrides what the pre-trained directory has
        }

    def decode(self, rows: Sequence[Row], examples: Sequence[Example], outputs: Sequence[np.ndarray]) -> list[str]:
        return [self.labels[int(np.argmax(logits))] for logits in outputs]

    @property
    def probability_columns(self) -> tuple[str, ...]:
        """The header of `probabilities`."""
        return ("index", *self.labels)

    def probabilities(
        self, rows: Sequence[Row], examples: Sequence[Example], outputs: Sequence[np.ndarray]
    ) -> Iterator[Sequence]:
        """A line for each row: its id, and the probability of each label, in the order of `labels`."""
        for row, logits in zip(rows, outputs, strict=True):
            yield row.id, *map(float, softmax(logits))

    def metric(self, rows: Sequence[Row], predictions: Sequence[str]) -> dict[str, float]:
        gold = [row.label for row in rows]
        compute = {
            "accuracy": lambda: metrics.accuracy(gold, predictions),
            "f1": lambda: metrics.f1(gold, predictions, self.positive),
            "matthews": lambda: metrics.matthews(gold, predictions),
        }
        return {name: compute[name]() for name in self.metrics_of(rows)}

    @property
    def positive(self) -> str:
        """The label whose F1 is computed."""
        return max(self.labels)

    def guess(self, rows: Sequence[Row]) -> list[str]:
        [(label, _)] = Counter(row.label for row in rows).most_common(1)
        return [label] * len(rows)

    def tables(self, rows: Sequence[Row], predictions: Sequence[str]) -> dict[str, list[Sequence]]:
        """Precision, recall and F1 of every label, and the confusion matrix."""
        labels = self.labels or tuple(sorted({row.label for row in rows} | set(predictions)))
        ids = {label: index for index, label in enumerate(labels)}
        counts = np.zeros((len(ids), len(ids)), np.int64)  # [label, prediction]
        for row, prediction in zip(rows, predictions, strict=True):
            counts[ids[row.label], ids[prediction]] += 1
        names = self.label_names or labels
        titles = [label if label == name else f"{label} {name}" for label, name in zip(labels, names, strict=True)]
        classes: list[Sequence] = [CLASS_COLUMNS]
        for index, title in enumerate(titles):
            classes.append((title, *class_scores(counts[index, index], counts[index].sum(), counts[:, index].sum())))
        confusion = [("label", *(f"predicted {title}" for title in titles))]
        confusion += [(title, *map(int, line)) for title, line in zip(titles, counts, strict=True)]
        return {"classes": classes, "confusion": confusion}
