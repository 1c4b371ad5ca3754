"""Classification of any texts: labels are whatever the training file says."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ..errors import DataError
from .base import Row
from .classification import Classification
from .files import read_json_lines


class TextClassification(Classification):
    """Tab-separated with the header ``text, label``, or JSON lines with the keys ``text``, ``label`` and maybe ``id``.

    Args:
        labels: the labels in the order of the class ids; empty to learn them from the training rows, sorted.
    """

    name = "text-classification"
    text_columns = ("text",)

    def __init__(self, labels: Sequence[str] = ()):
        self.labels = tuple(labels)

    def read(self, path: str | os.PathLike) -> list[Row]:
        if os.fspath(path).endswith((".jsonl", ".json")):
            return self._read_json(path)
        return super().read(path)

    def _read_json(self, path: str | os.PathLike) -> list[Row]:
        rows = []
        for index, (number, value) in enumerate(read_json_lines(path, self.bad_rows)):
            text, label = value.get("text"), value.get("label")
            try:
                if not isinstance(text, str) or not text.strip():
                    raise ValueError(f"expected a text under the key 'text', got {text!r}")
                label = None if label is None else self.parse(str(label))
            except ValueError as error:
                self.bad_rows.refuse(f"{path}, line {number}: {error}")
                continue
            rows.append(Row(str(value.get("id", index)), (text.strip(),), label))
        if not rows:
            raise DataError(f"{path}: expected rows, got none that can be used")
        return rows

    def learn(self, rows: Sequence[Row]) -> None:
        if not self.labels:
            self.labels = tuple(sorted({row.label for row in rows if row.label is not None}))

    def restore(self, config) -> None:
        super().restore(config)
        names = {int(index): name for index, name in config.id2label.items()}
        self.labels = tuple(names[index] for index in sorted(names))
