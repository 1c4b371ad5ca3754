"""Classification of any texts: labels are whatever the training file says."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from ..errors import InputError
from .base import LabelColumns, Row
from .classification import Classification
from .exported import naming_column, unquoted
from .files import shorten
from .hub_files import Record, class_number

_BREAKS = re.compile(r"[\t\r\n]")
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")


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
        rows = super().read(path)
        # Sentiments may be -1, 0 and 1; hubs give -1 to every row of a test file.
        if all(row.label == "-1" for row in rows):
            return [replace(row, label=None) for row in rows]
        return rows

    def rows_of(self, path: str | os.PathLike, records: Iterable[tuple[int, Record | None]]) -> Iterator[Row]:
        seen: set[str] = set()
        for index, record in records:
            if record is None:
                continue
            values = record.values
            if index == 0:
                self.label_columns = LabelColumns(record.where, ("label",), (*values, *record.nulls))
            names = naming_column(self, values)
            name = str(index if names is None else values[names]).strip()
            text, label = values.get("text", values.get("sentence")), values.get("label")
            try:
                if not isinstance(text, str) or not text.strip():
                    raise ValueError(f"expected a text under the key 'text', got {text!r}")
                label = None if label is None else self._label(label, record.names.get("label", ()))
                self.check_id(name, seen, numbered=names is None)
            except ValueError as error:
                self.bad_rows.refuse(f"{record.where}: {error}")
                continue
            yield Row(name, (text.strip(),), label)

    def plain(self, text: str) -> str:
        # A file of one's own, which pandas writes with CSV's quotes between tabs as well.
        return unquoted(text)

    def parse(self, text: str) -> str:
        if _BREAKS.search(text):
            raise _not_one(text)
        return super().parse(text)

    def _label(self, value: Any, names: Sequence[str]) -> str | None:
        try:
            if isinstance(value, (list, dict)) or value != value:  # NaN is a table's way to have none
                raise _not_one(value)
            label = _named(value, names)
        except ValueError:
            if self.predicting:
                return None
            raise
        return None if label is None else self.answer(label)

    def learn(self, rows: Sequence[Row]) -> None:
        if not self.labels:
            self.labels = tuple(sorted({row.label for row in rows if row.label is not None}))

    def restore(self, config) -> None:
        """Takes the classes of a model, in its order.

        Raises:
            InputError: a model that decides each class alone, or names that would break a line of predictions.
        """
        super().restore(config)
        names = {int(index): name for index, name in config.id2label.items()}
        if config.problem_type == "multi_label_classification":
            raise InputError(
                f"task {self.name}: expected a model of one label a text, got problem_type {config.problem_type}"
            )
        broken = next((name for name in names.values() if _BREAKS.search(name)), None)
        if broken is not None:
            raise InputError(
                f"task {self.name}: expected an id2label of names without tabs or line ends, got {broken!r:.60}"
            )
        self.labels = tuple(names[index] for index in sorted(names))


def _not_one(label: Any) -> ValueError:
    """Of a label that no line of predictions has a place for."""
    return ValueError(f"expected one label, without tabs or line ends, got {shorten(repr(label))}")


def _named(label: Any, names: Sequence[str]) -> str | None:
    """A class's name where the file has one; None for -1, which says among numbers of names that there is none.

    Raises:
        ValueError: the number of no name.
    """
    number, text = class_number(label, names), str(label).strip()
    if number is not None and number < len(names):
        return names[number]
    # Without names a number is a class as any other word is.
    if not names or (isinstance(label, str) and (text in names or not _NUMBER.fullmatch(text))):
        return text
    if text in ("-1", "-1.0"):
        return None
    raise ValueError(f"expected the number of a class from 0 to {len(names) - 1}, or -1 for none, got {text}")
