"""Classification of any texts: labels are whatever the training file says."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from .bad_rows import numbered
from .base import LabelColumns, Row
from .classification import Classification
from .exported import id_names
from .files import shorten
from .hub_files import Record, class_number, is_hub_file, read_records

_BREAKS = re.compile(r"[\t\r\n]")


class TextClassification(Classification):
    """Tab-separated with the header ``text, label``; or JSON lines or Parquet with ``text``, ``label``, maybe ``id``.

    Args:
        labels: the labels in the order of the class ids; empty to learn them from the training rows, sorted.
    """

    name = "text-classification"
    text_columns = ("text",)
    no_label = ()

    def __init__(self, labels: Sequence[str] = ()):
        self.labels = tuple(labels)

    def read(self, path: str | os.PathLike) -> list[Row]:
        if is_hub_file(path):
            rows = self._rows(path, read_records(path, self.bad_rows))
        else:
            rows = super().read(path)
        # Sentiments may be -1, 0 and 1; hubs give -1 to every row of a test file.
        if all(row.label == "-1" for row in rows):
            return [replace(row, label=None) for row in rows]
        return rows

    def _rows(self, path: str | os.PathLike, records: Iterable[Record]) -> list[Row]:
        rows, seen = [], set()
        for index, record in numbered(records, self.bad_rows):
            values = record.values
            if index == 0:
                self.label_columns = LabelColumns(record.where, ("label",), tuple(values))
            name = str(next((values[key] for key in id_names(self) if key in values), index)).strip()
            text, label = values.get("text", values.get("sentence")), values.get("label")
            try:
                if not isinstance(text, str) or not text.strip():
                    raise ValueError(f"expected a text under the key 'text', got {text!r}")
                label = None if label is None else self._label(label, record.names.get("label", ()))
                self.check_id(name, seen)
            except ValueError as error:
                self.bad_rows.refuse(f"{record.where}: {error}")
                continue
            rows.append(Row(name, (text.strip(),), label))
        if not rows:
            raise self.bad_rows.none_left(path, "rows")
        return rows

    def _label(self, value: Any, names: Sequence[str]) -> str | None:
        one = not isinstance(value, (list, dict)) and value == value  # NaN is a table's way to have none
        if one and not _BREAKS.search(str(value).strip()):
            return self.answer(_named(value, names))
        if self.predicting:
            return None
        raise ValueError(
            f"expected one label under the key 'label', without tabs or line ends, got {shorten(repr(value))}"
        )

    def learn(self, rows: Sequence[Row]) -> None:
        if not self.labels:
            self.labels = tuple(sorted({row.label for row in rows if row.label is not None}))

    def restore(self, config) -> None:
        super().restore(config)
        names = {int(index): name for index, name in config.id2label.items()}
        self.labels = tuple(names[index] for index in sorted(names))


def _named(label: Any, names: Sequence[str]) -> str:
    """A class's name where the file has one."""
    number = class_number(label, names)
    return names[number] if number is not None and number < len(names) else str(label).strip()
