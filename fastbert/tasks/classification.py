"""Tasks that give one label to a text or to a pair: a subclass states its name, its labels and its columns."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..errors import DataError, InputError
from .base import Example, Row, Task
from .encoding import encode_texts
from .files import atomic_write, read_tsv, shorten


class Classification(Task):
    """One of C labels for one text or a pair, from a tab-separated file with a header.

    Attributes:
        labels: as they are written in the files, in the order of the class ids.
        label_names: what the model's configuration calls them; None for `labels` themselves.
        text_columns: the columns of the text or of the pair.
        label_column: the column of the label.
        id_column: the column that names a row in files without labels.
    """

    metrics: tuple[str, ...] = ("accuracy",)
    labels: tuple[str, ...] = ()
    label_names: tuple[str, ...] | None = None
    text_columns: tuple[str, ...] = ("sentence",)
    label_column: str = "label"
    id_column: str = "index"

    @property
    def headers(self) -> list[tuple[str, ...]]:
        """The headers that a file may have: of a labelled file, and of a test file."""
        return [(*self.text_columns, self.label_column), (self.id_column, *self.text_columns)]

    def read(self, path: str | os.PathLike) -> list[Row]:
        """Reads a labelled file, whose rows are numbered from 0, or a test file, whose rows name themselves."""
        header, lines = read_tsv(path, self.headers)
        rows = []
        for index, (number, fields) in enumerate(lines):
            values = dict(zip(header, (field.strip() for field in fields), strict=True))
            texts = tuple(values[column] for column in self.text_columns)
            if not all(texts):
                raise DataError(f"{path}, line {number}: expected a text in every text column, got an empty one")
            label = values.get(self.label_column)
            if label is not None:
                self.check_label(label, f"{path}, line {number}")
            rows.append(Row(values.get(self.id_column, str(index)), texts, label))
        return rows

    def check_label(self, label: str, where: str) -> None:
        """Raises DataError for a label that is none of the task's."""
        if self.labels and label not in self.labels:
            raise DataError(f"{where}: expected the label to be one of {', '.join(self.labels)}, got {label!r}")

    def encode(self, rows: Sequence[Row], tokenizer, max_seqlen: int) -> list[Example]:
        encodings = encode_texts([row.texts for row in rows], tokenizer, max_seqlen)
        ids = {label: index for index, label in enumerate(self.labels)}
        strange = next((row for row in rows if row.label is not None and row.label not in ids), None)
        if strange is not None:
            raise DataError(
                f"row {strange.id}: expected the label to be one of {', '.join(self.labels)}, got {strange.label!r}"
            )
        return [
            Example(
                index,
                encoding.ids,
                encoding.type_ids,
                label=None if row.label is None else ids[row.label],
                truncated=bool(encoding.overflowing),
            )
            for index, (row, encoding) in enumerate(zip(rows, encodings, strict=True))
        ]

    def model(self, directory: str | os.PathLike):
        from ..models import BertForSequenceClassification

        return BertForSequenceClassification.from_pretrained(directory, **self.head())

    def head(self) -> dict:
        """The configuration of the head: how many labels, and their names."""
        if len(self.labels) < 2:
            raise InputError(f"task {self.name} needs at least two labels, got {list(self.labels)}")
        names = self.label_names or self.labels
        return {
            "num_labels": len(names),
            "id2label": dict(enumerate(names)),
            "label2id": {name: index for index, name in enumerate(names)},
        }

    def decode(self, rows: Sequence[Row], examples: Sequence[Example], outputs: Sequence[np.ndarray]) -> list[str]:
        return [self.labels[int(np.argmax(logits))] for logits in outputs]

    def metric(self, rows: Sequence[Row], predictions: Sequence[str]) -> dict[str, float]:
        right = sum(row.label == prediction for row, prediction in zip(rows, predictions, strict=True))
        return {"accuracy": right / len(rows)}

    def write_predictions(self, rows: Sequence[Row], predictions: Sequence[str], path: str | os.PathLike) -> None:
        """Writes GLUE's submission format: ``index<TAB>prediction``."""
        with atomic_write(path) as file:
            file.write("index\tprediction\n")
            for row, prediction in zip(rows, predictions, strict=True):
                file.write(f"{row.id}\t{prediction}\n")

    def read_predictions(self, rows: Sequence[Row], path: str | os.PathLike) -> list[str]:
        _, lines = read_tsv(path, [("index", "prediction")])
        found: dict[str, str] = {}
        for number, (index, prediction) in lines:
            where = f"{Path(path)}, line {number}"
            if index in found:
                raise DataError(f"{where}: index {index} occurs twice")
            self.check_label(prediction.strip(), where)
            found[index] = prediction.strip()
        known = {row.id for row in rows}
        missing = [row.id for row in rows if row.id not in found]
        unknown = [index for index in found if index not in known]
        if missing or unknown:
            raise DataError(
                f"{path}: expected one prediction for each of {len(rows)} rows, got {len(found)}; "
                f"missing {shorten(', '.join(missing)) or 'none'}; unknown {shorten(', '.join(unknown)) or 'none'}"
            )
        return [found[row.id] for row in rows]
