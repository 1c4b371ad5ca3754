"""Classification of any texts: labels are whatever the training file says."""

from __future__ import annotations

import logging
import os
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from ..errors import InputError
from ..wording import counted
from .bad_rows import called
from .base import Row
from .classification import Classification
from .exported import unquoted
from .files import shorten
from .hub_files import class_number
from .text import TextTask

_BREAKS = re.compile(r"[\t\r\n]")
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")
_SEPARATORS = re.compile(r"[,;|]")
MANY = 20
"""Rows of which most have a class of their own, if that is to be told of."""


class OwnFiles(TextTask):
    """Files of one's own: tab- or comma-separated, JSON lines or Parquet with ``text``, ``label``, maybe ``id``; or
    with the columns that `TaskOptions` names, which may be two of a pair."""

    text_columns = ("text",)
    counts = (1, 2)
    no_label = ()

    def plain(self, text: str) -> str:
        # pandas writes CSV's quotes between tabs as well.
        return unquoted(text)

    def check_texts(self, texts: Sequence[str], labelled: bool) -> None:
        # Of Yahoo's questions half have a title alone, and some of Amazon's reviews have none.
        super().check_texts(texts, labelled=False)

    def sources(self, row: Row) -> tuple[Hashable | None, ...]:
        """The first text that is not empty: rows without a title are not of one source."""
        return row.source, next(filter(None, row.texts))


class TextClassification(OwnFiles, Classification):
    """One label of those that the training file has.

    Args:
        labels: the labels in the order of the class ids; empty to learn them from the training rows, sorted, numbers
            by their size.
    """

    name = "text-classification"
    own_files = True

    def __init__(self, labels: Sequence[str] = ()):
        self.labels = tuple(labels)

    def read(self, path: str | os.PathLike) -> list[Row]:
        rows = super().read(path)
        # Sentiments may be -1, 0 and 1; hubs give -1 to every row of a test file.
        if all(row.label == "-1" for row in rows):
            return [replace(row, label=None) for row in rows]
        return rows

    def parse(self, text: str) -> str:
        if _BREAKS.search(text):
            raise _not_one(text)
        return super().parse(text)

    def label_of(self, value: Any, names: Sequence[str]) -> str | None:
        try:
            if isinstance(value, (list, dict)) or value != value:  # NaN is a table's way to have none
                raise _not_one(value)
            label = self._of_model(value) if isinstance(value, bool) else _named(value, names)
        except ValueError:
            if self.predicting:
                return None
            raise
        return None if label is None else self.answer(label)

    def _of_model(self, value: bool) -> str:
        """true or false, as JSON writes them; or what the model calls them, whose file may have had names for them."""
        word = str(value).lower()
        return next((label for label in self.labels if label.lower() == word), word)

    def for_training(self, rows: Sequence[Row], path: str | os.PathLike) -> list[Row]:
        """Warns of a header that numbers of columns have made a row, and of labels that are hardly classes."""
        counts = Counter(row.label for row in rows if row.label is not None)
        alone = bool(rows) and counts[rows[0].label] == 1 and len(rows) > 2 * len(counts)
        if alone and all(map(str.isdecimal, self.text_columns)):
            logging.getLogger("fastbert").warning(
                "%s: the label of its first row, %s, comes in no other: columns of a file with a header are given by "
                "their names",
                called(path),
                shorten(rows[0].label),
            )
        _say_if_no_classes(counts, path)
        return super().for_training(rows, path)

    def learn(self, rows: Sequence[Row]) -> None:
        if not self.labels:
            self.labels = tuple(_in_order({row.label for row in rows if row.label is not None}))

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


def _in_order(labels: Iterable[str]) -> list[str]:
    """Sorted; where all are numbers by their size, so that labels from 0 on are the ids of their classes, as who takes
    the largest logit for the label expects."""
    labels = sorted(labels)
    return sorted(labels, key=float) if all(map(_NUMBER.fullmatch, labels)) else labels


def _say_if_no_classes(counts: Counter[str], path: str | os.PathLike) -> None:
    """Warns of texts with several classes in one label, as GoEmotions' 2,5; and of about as many labels as rows, which
    are numbers to be estimated, or the values of another column."""
    several = [label for label in counts if _joins_classes(label, counts)]
    if several:
        logging.getLogger("fastbert").warning(
            "%s: expected one class a text, got several in %s, such as %s: each such label is a class of its own",
            called(path),
            counted(sum(counts[label] for label in several), "row"),
            shorten(several[0]),
        )
    rows = counts.total()
    if rows >= MANY and 2 * len(counts) > rows:
        logging.getLogger("fastbert").warning(
            "%s: expected classes that come again, got %d labels in %d rows: text-regression estimates numbers, and "
            "--label-column names another column",
            called(path),
            len(counts),
            rows,
        )


def _joins_classes(label: str, counts: Counter[str]) -> bool:
    parts = [part.strip() for part in _SEPARATORS.split(label)]
    return len(parts) > 1 and all(part in counts for part in parts)


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
