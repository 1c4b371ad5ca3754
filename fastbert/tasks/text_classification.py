"""Classification of the user's own files, with the labels of the training file."""

from __future__ import annotations

import logging
import os
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from ..errors import InputError
from .bad_rows import called
from .base import Row
from .classification import Classification
from .files import shorten
from .heads import class_names
from .hub_files import NO_LABEL, class_number
from .label_warnings import NUMBER, say_what_looks_wrong
from .table_records import unquoted
from .text import TextTask

_log = logging.getLogger("fastbert")
BREAKS = re.compile(r"[\t\r\n]")
_SEPARATORS = re.compile(r"[,;|]")


class OwnFiles(TextTask):
    """The user's own files: tab- or comma-separated, JSON lines or Parquet, with ``text``, ``label`` and perhaps
    ``id``; or with the columns that `TaskOptions` names, one for a text or two for a pair."""

    text_columns = ("text",)
    quoted = True
    counts = (1, 2)
    no_label = ()

    def plain(self, text: str) -> str:
        # pandas writes CSV quotes into tab-separated files too.
        return unquoted(text)

    def check_texts(self, texts: Sequence[str], labelled: bool) -> None:
        # Half of Yahoo's questions only have a title, and some of Amazon's reviews have none.
        super().check_texts(texts, labelled=False)

    def say_if_header(self, first: Sequence[str], counts: Counter[str], rows: int, path: str | os.PathLike) -> None:
        """Warns if the first row looks like a header, because columns were given by number.

        Args:
            first: the labels of the first row.
            counts, rows: how often each label occurs, and the number of rows.
            path: the file.
        """
        alone = bool(first) and all(counts[label] == 1 for label in first) and rows > 2 * len(counts)
        if alone and all(map(str.isdecimal, self.text_columns)):
            _log.warning(
                "%s: the label of its first row, %s, occurs in no other row: if the file has a header, give columns by "
                "their names",
                called(path),
                shorten(", ".join(first)),
            )

    def sources(self, row: Row) -> tuple[Hashable | None, ...]:
        """Takes the first text that is not empty: rows without a title are not from one source."""
        return row.source, next(filter(None, row.texts))


def _counts(rows: Sequence[Row]) -> Counter[str]:
    return Counter(row.label for row in rows if row.label is not None)


class TextClassification(OwnFiles, Classification):
    """One of the labels in the training file.

    Args:
        labels: the labels in the order of the class ids; empty to learn them from the training rows, sorted (by value
            if they are all numbers).
    """

    name = "text-classification"
    own_files = True

    def __init__(self, labels: Sequence[str] = ()):
        self.labels = tuple(labels)

    def read(self, path: str | os.PathLike) -> list[Row]:
        rows = super().read(path)
        # -1 may be a class, as in sentiments -1, 0 and 1; but if every row has it, it is a hub's test file.
        if all(row.label == "-1" for row in rows):
            return [replace(row, label=None) for row in rows]
        return rows

    def parse(self, text: str) -> str:
        if BREAKS.search(text):
            raise _not_one(text)
        # transformers calls the classes so whose names nobody has said: files have their ids then.
        unnamed = f"LABEL_{text}"
        return super().parse(unnamed if unnamed in self.labels and text not in self.labels else text)

    def label_of(self, value: Any, names: Sequence[str]) -> str | None:
        try:
            if isinstance(value, list) and len(value) == 1:
                [value] = value  # data sets with several classes a text have lists
            if isinstance(value, (list, dict)) or value != value:  # NaN is a missing value of a table
                raise _not_one(value)
            label = self._of_model(value) if isinstance(value, bool) else named_class(value, names)
        except ValueError:
            if self.predicting:
                return None
            raise
        return None if label is None else self.answer(label)

    def _of_model(self, value: bool) -> str:
        """The label for a bool: "true" or "false" as in JSON, in the spelling of the model's label if it has one."""
        word = str(value).lower()
        return word if word in self.labels else next((name for name in self.labels if name.lower() == word), word)

    def check_labels(self, rows: Sequence[Row], path: str | os.PathLike) -> None:
        say_what_looks_wrong(_counts(rows), len(rows), path)

    def for_training(
        self, rows: Sequence[Row], path: str | os.PathLike, known: Sequence[Row] | None = None
    ) -> list[Row]:
        """Refuses rows whose label joins several of the file's classes, such as GoEmotions' 2,5: it would be a class of
        its own. Warns if the first row looks like a header, and if labels do not look like classes."""
        self.say_if_header([row.label for row in rows[:1]], _counts(rows), len(rows), path)
        if known is None:
            self.check_labels(rows, path)
        counts = _counts(rows if known is None else known)
        kept, joined = [], {label for label in counts if _joins_classes(label, counts)}
        for row in rows:
            if row.label in joined:
                self.bad_rows.refuse(
                    f"{called(path)}, the row of index {row.id}: expected one class a text, got several, "
                    f"{shorten(row.label)!r}"
                )
                continue
            kept.append(row)
        return super().for_training(kept, path, known)

    def learn(self, rows: Sequence[Row], used: Sequence[Row] | None = None) -> None:
        if not self.labels:
            self.labels = tuple(in_order({row.label for row in rows if row.label is not None}))

    def restore(self, config) -> None:
        """Takes the classes of a model, in the order of their ids.

        Raises:
            InputError: it is a multi-label model or one of a single number, or a class name contains a tab or line end,
                which would break a file of predictions.
        """
        super().restore(config)
        names = class_names(config)
        if config.problem_type == "multi_label_classification":
            raise InputError(
                f"task {self.name}: expected a model of one label a text, got problem_type {config.problem_type}: the "
                "task text-multilabel predicts several"
            )
        if config.problem_type == "regression" and len(names) > 1:
            raise InputError(f"task {self.name}: expected a model of classes, got a regression of {len(names)} numbers")
        if len(names) == 1:
            raise InputError(
                f"task {self.name}: expected a model of two classes or more, got one of a single number, as regressions"
                " and cross-encoders are: the task text-regression writes the number"
            )
        broken = next((name for name in names if BREAKS.search(name)), None)
        if broken is not None:
            raise InputError(
                f"task {self.name}: expected an id2label of names without tabs or line ends, got {broken!r:.60}"
            )
        self.labels = tuple(names)


def in_order(labels: Iterable[str]) -> list[str]:
    """The labels sorted, by value if all are numbers: then labels 0, 1, ... equal their class ids, as code that takes
    the argmax of the logits for the label expects."""
    labels = sorted(labels)
    return sorted(labels, key=float) if all(map(NUMBER.fullmatch, labels)) else labels


def _joins_classes(label: str, counts: Counter[str]) -> bool:
    listed = label.startswith("[") and label.endswith("]")  # as tables have lists: [2, 5], or numpy's [2 5]
    parts = label[1:-1].replace(",", " ").split() if listed else map(str.strip, _SEPARATORS.split(label))
    known = [part in counts or (listed and f"[{part}]" in counts) for part in parts]
    return len(known) > 1 and all(known)


def _not_one(label: Any) -> ValueError:
    """The error for a label that cannot be written in a line of predictions."""
    return ValueError(f"expected one label, without tabs or line ends, got {shorten(repr(label))}")


def named_class(label: Any, names: Sequence[str]) -> str | None:
    """The name of a class: by its number if the file has names, otherwise the label itself. None for -1 if the file
    has names, which means that there is no label.

    Raises:
        ValueError: the file has names, and this number is not that of one.
    """
    number, text = class_number(label, names), str(label).strip()
    if number is not None and number < len(names):
        return names[number]
    # Without names, a number is a class like any word.
    if not names or (isinstance(label, str) and (text in names or not NUMBER.fullmatch(text))):
        return text
    if text in NO_LABEL:
        return None
    raise ValueError(f"expected the number of a class from 0 to {len(names) - 1}, or -1 for none, got {text}")
