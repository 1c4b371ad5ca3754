"""Multi-label classification of the user's own files: a text has any number of the labels, or none of them."""

from __future__ import annotations

import ast
import contextlib
import json
import logging
import os
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import DataError, InputError
from ..model_config import ModelConfig
from . import metrics
from .bad_rows import called
from .base import Example, Row
from .classification import CLASS_COLUMNS, class_scores
from .files import shorten
from .heads import class_names
from .label_warnings import say_what_looks_wrong
from .text_classification import BREAKS, OwnFiles, in_order, named_class

if TYPE_CHECKING:
    from .config import TaskOptions
    from .hub_files import Record

_log = logging.getLogger("fastbert")
# As programs write them into tables: lists, sets (and PostgreSQL's arrays); tuples where items are quoted or numbers.
_LIST = re.compile(r"""\[(.*)\]|\{(.*)\}|\((\s*['"].*|[0-9\s.,]*)\)""", re.DOTALL)
_CALL = re.compile(r"(array|set|frozenset)\(.*", re.DOTALL)
_QUOTED = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""")
_SEPARATORS = re.compile(r"[,;|]")
_BITS = {"0", "1", "0.0", "1.0", "0.", "1.", "false", "true"}
_IN_COLUMNS = ": zeros and ones that say which labels a text has belong in columns (--label-columns)"
_YES, _NO, _UNKNOWN = ("1", "1.0", "true"), ("0", "0.0", "false"), ("-1", "-1.0")


class TextMultilabel(OwnFiles):
    """Any of the labels in the training file. A row's label is the tuple of its labels, in their order.

    Args:
        labels: all labels in the order of the class ids; empty to learn them from the training rows.

    Attributes:
        label_columns: the columns of 0 and 1, one for each label; None if one column has all labels.
        label_separator: what separates labels in one column; None for a comma, a semicolon or a vertical bar.
    """

    name = "text-multilabel"
    metrics = ("micro_f1", "macro_f1", "exact_match")
    own_files = True
    several_labels = True
    label_columns: tuple[str, ...] | None = None
    label_separator: str | None = None

    def __init__(self, labels: Sequence[str] = ()):
        self.labels = tuple(labels)

    def configure(self, options: TaskOptions) -> None:
        super().configure(options)
        if self.label_columns is not None:
            self.label_column = self.label_columns[0]
        for label in self.labels:  # those of a model
            try:
                self._check_writable(label)
            except ValueError as error:
                raise InputError(f"task {self.name}: {error}") from None

    @property
    def label_fields(self) -> tuple[str, ...]:
        return self.label_columns or super().label_fields

    def labels_at(self, columns: Collection[str]) -> tuple[str, ...]:
        if self.label_columns is None:
            return super().labels_at(columns)
        return tuple(name for name in self.label_columns if name in columns)

    def read(self, path: str | os.PathLike) -> list[Row]:
        rows = super().read(path)
        self._refuse_bits(rows, path)
        return rows

    def _refuse_bits(self, rows: Sequence[Row], path: str | os.PathLike) -> None:
        """Raises DataError if every row has the labels 0 and 1, and there are no others: then [1, 0] was hardly meant
        as a list of labels, but says which of two labels a text has."""
        found = {row.label for row in rows if row.label is not None}
        if len(rows) < 2 or len(found) > 1 or self.predicting:
            return
        labels = {label.removeprefix("LABEL_").lower() for names in found for label in names}
        if len(labels) == 2 and labels <= _BITS and len(self.labels) in (0, 2):
            both = " and ".join(in_order(next(iter(found))))
            raise DataError(f"{called(path)}: expected lists of labels, got {both} in every row{_IN_COLUMNS}")

    def label_in(self, record: Record) -> tuple[str, ...] | None:
        if self.label_columns is None:
            return super().label_in(record)
        found = self.labels_at(record.values)
        try:
            return self._of_columns(record.values, found) if found else None
        except ValueError:
            if self.predicting:
                return None
            raise

    def _of_columns(self, values: dict[str, Any], found: Sequence[str]) -> tuple[str, ...] | None:
        """The labels whose columns have a 1; None if a column says that nobody knows."""
        lacking = [name for name in self.label_columns or () if name not in found]
        if lacking:
            names = shorten(", ".join(lacking))
            raise ValueError(f"expected 0 or 1 in the column of every label, got none in {names}")
        words = {name: str(values[name]).strip().lower() for name in found}
        if any(word in _UNKNOWN for word in words.values()):
            return None
        wrong = next((name for name, word in words.items() if word not in (*_YES, *_NO)), None)
        if wrong is not None:
            raise ValueError(f"expected 0 or 1 in the column {wrong}, got {shorten(repr(values[wrong]))}")
        return self._checked([name for name, word in words.items() if word in _YES])

    def label_of(self, value: Any, names: Sequence[str]) -> tuple[str, ...] | None:
        try:
            if isinstance(value, str) and not names:
                return self.parse(value)
            values = value if isinstance(value, list) else [value]
            if any(
                not isinstance(item, (str, int, float)) or isinstance(item, bool) or item != item for item in values
            ):
                hint = _IN_COLUMNS if any(isinstance(item, bool) for item in values) else ""
                raise ValueError(f"expected a list of labels, got {shorten(repr(value))}{hint}")
            found = [named_class(item, names) for item in values]
            return None if None in found else self._checked(found)
        except ValueError:
            if self.predicting:
                return None
            raise

    def parse(self, text: str) -> tuple[str, ...]:
        """The labels in a text such as "a,b", or in a list as programs write it into tables: ['a', 'b'], [2 5]."""
        text = text.strip()
        listed = _LIST.fullmatch(text)
        if listed:
            parts = _items(next(inside for inside in listed.groups() if inside is not None), text)
        elif text in ("", "set()"):
            parts = []
        elif _CALL.fullmatch(text):
            raise ValueError(f"expected labels, or a list of them in square brackets, got {shorten(repr(text))}")
        elif self.label_separator is None:
            parts = _SEPARATORS.split(text)
        else:
            parts = text.split(self.label_separator.strip() or None)
        return self._checked(parts)

    def _checked(self, labels: Sequence[str]) -> tuple[str, ...]:
        """These labels in their order.

        Raises:
            ValueError: a label is empty, comes twice, is none of the task's, or could not be read in a file of
                predictions.
        """
        labels = [self._known(label.strip()) for label in labels]
        twice = next((label for label, count in Counter(labels).items() if count > 1), None)
        if twice is not None:
            hint = _IN_COLUMNS if {label.lower() for label in labels} <= _BITS else ""
            raise ValueError(f"expected every label once, got {shorten(twice)} {labels.count(twice)} times{hint}")
        return tuple(in_order(labels))

    def _known(self, label: str) -> str:
        self._check_writable(label)
        if not self.labels or label in self.labels:
            return label
        unnamed = f"LABEL_{label}"  # what transformers calls classes whose names nobody has said
        if unnamed in self.labels:
            return unnamed
        raise ValueError(f"expected labels among {shorten(', '.join(self.labels), 200)}, got {shorten(repr(label))}")

    def _check_writable(self, label: str) -> None:
        """Raises ValueError for a label that would be taken for none or for several in a file of predictions."""
        if not label or BREAKS.search(label):
            raise ValueError(f"expected labels of a character or more, no tab or line end, got {shorten(repr(label))}")
        separator = self.label_separator
        several = _SEPARATORS.search(label) if separator is None else len(label.split(separator.strip() or None)) > 1
        if several:
            marks = "commas, semicolons and vertical bars" if separator is None else repr(separator)
            raise ValueError(
                f"expected labels without {marks}, which separate them (--label-separator names another), got "
                f"{shorten(repr(label))}"
            )

    def show(self, prediction: Sequence[str]) -> str:
        text = (self.label_separator or ",").join(prediction)
        would_be_a_list = _LIST.fullmatch(text) or _CALL.fullmatch(text)
        return json.dumps(list(prediction), ensure_ascii=False) if would_be_a_list else text

    def for_training(
        self, rows: Sequence[Row], path: str | os.PathLike, known: Sequence[Row] | None = None
    ) -> list[Row]:
        """Warns if the first row looks like a header, and as `check_labels` does."""
        if self.label_columns is None:
            counts = Counter(label for row in rows for label in row.label or ())
            self.say_if_header(rows[0].label or () if rows else (), counts, len(rows), path)
        if known is None:
            self.check_labels(rows, path)
        return super().for_training(rows, path, known)

    def check_labels(self, rows: Sequence[Row], path: str | os.PathLike) -> None:
        """Warns if labels do not look like classes, and of labels that are others with blanks between them."""
        counts = Counter(label for row in rows for label in row.label or ())
        if self.label_columns is None:
            say_what_looks_wrong(counts, len(rows), path)
        known = set(counts)
        joined = next((label for label in sorted(known) if " " in label and _joins(label.split(), known)), None)
        if joined is not None:
            _log.warning(
                "%s: the label %r is several others with blanks between them, but is taken for one of its own "
                '(--label-separator " " separates them)',
                path,
                shorten(joined),
            )

    def learn(self, rows: Sequence[Row], used: Sequence[Row] | None = None) -> None:
        if not self.labels:
            found = {label for row in rows for label in row.label or ()}
            self.labels = self.label_columns or tuple(in_order(found))

    def restore(self, config: ModelConfig) -> None:
        """Takes the classes of a model, in the order of their ids.

        Raises:
            InputError: its outputs are not those of a multi-label model.
        """
        super().restore(config)
        kind = config.problem_type
        if kind not in (None, "multi_label_classification"):
            raise InputError(
                f"task {self.name}: expected a model of several labels a text, with the problem_type "
                f"multi_label_classification in its config.json, got {kind}"
            )
        if kind is None:
            _log.warning(
                "config.json names no problem_type, expected multi_label_classification: the model's outputs are "
                "taken for several labels a text"
            )
        self.labels = tuple(class_names(config))
        twice = next((label for label, count in Counter(self.labels).items() if count > 1), None)
        if twice is not None:
            raise InputError(f"task {self.name}: expected an id2label of different names, got {shorten(twice)} twice")

    @property
    def classes(self) -> tuple[Sequence[str], ...]:
        return (self.labels,)

    def head(self) -> dict:
        if not self.labels:
            raise InputError(f"task {self.name} needs at least one label, got none in all training rows")
        return {"id2label": dict(enumerate(self.labels)), "problem_type": "multi_label_classification"}

    def target(self, label: Sequence[str]) -> np.ndarray:
        """(labels,) zeros and ones, in a byte each: EUR-Lex has thousands of labels."""
        hot = np.zeros(len(self.labels), np.uint8)
        hot[[self.labels.index(name) for name in label]] = 1
        return hot

    def decode(
        self, rows: Sequence[Row], examples: Sequence[Example], outputs: Sequence[np.ndarray]
    ) -> list[tuple[str, ...]]:
        """The labels with probabilities above a half, whose logits are above 0."""
        return [
            tuple(in_order([name for name, logit in zip(self.labels, logits, strict=True) if logit > 0]))
            for logits in outputs
        ]

    @property
    def probability_columns(self) -> tuple[str, ...]:
        """The header of `probabilities`."""
        return ("index", *self.labels)

    def probabilities(
        self, rows: Sequence[Row], examples: Sequence[Example], outputs: Sequence[np.ndarray]
    ) -> Iterator[Sequence]:
        """A line for each row: its id, and the probability of each label by itself."""
        for row, logits in zip(rows, outputs, strict=True):
            yield row.id, *map(float, np.exp(-np.logaddexp(0.0, -np.float64(logits))))

    def _hot(self, rows: Sequence[Row], predictions: Sequence[Sequence[str]]) -> tuple[list[str], list[np.ndarray]]:
        """All labels, and (rows, labels) arrays of zeros and ones: what rows have, and what was predicted for them.
        Without a model the labels are those that occur."""
        sides = [[row.label for row in rows], list(predictions)]
        labels = self.labels or self.label_columns or in_order({name for side in sides for one in side for name in one})
        places = {name: place for place, name in enumerate(labels)}
        hot = [np.zeros((len(side), len(places)), np.uint8) for side in sides]
        for array, side in zip(hot, sides, strict=True):
            for index, names in enumerate(side):
                array[index, [places[name] for name in names]] = 1
        return list(labels), hot

    def metric(self, rows: Sequence[Row], predictions: Sequence[Sequence[str]]) -> dict[str, float]:
        _, (gold, found) = self._hot(rows, predictions)
        return {
            "micro_f1": metrics.f1_of_labels(gold, found, "micro"),
            "macro_f1": metrics.f1_of_labels(gold, found, "macro"),
            "exact_match": float((gold == found).all(1).mean()),
        }

    def guess(self, rows: Sequence[Row]) -> list[tuple[str, ...]]:
        """The most frequent labels for every row, as many of them as have the best micro F1."""
        counts = Counter(label for row in rows for label in row.label)
        f1s, right = [], 0
        for predicted, (_, count) in enumerate(counts.most_common(), 1):
            right += count
            f1s.append(2 * right / (counts.total() + predicted * len(rows)))
        best = f1s.index(max(f1s)) + 1 if f1s else 0
        return [tuple(in_order([label for label, _ in counts.most_common(best)]))] * len(rows)

    def tables(self, rows: Sequence[Row], predictions: Sequence[Sequence[str]]) -> dict[str, list[Sequence]]:
        """Precision, recall and F1 of every label."""
        labels, (gold, found) = self._hot(rows, predictions)
        counts = (gold & found).sum(0), gold.sum(0), found.sum(0)
        lines = [(label, *class_scores(*line)) for label, *line in zip(labels, *counts, strict=True)]
        return {"classes": [CLASS_COLUMNS, *lines]}


def _joins(words: list[str], known: set[str]) -> bool:
    """Whether the words of a label are labels themselves, or zeros and ones."""
    return set(words) <= known or set(words) <= {"0", "1"}


def _items(inside: str, text: str) -> list[str]:
    """The items of a list that a program has written: quoted; or without quotes, with commas or blanks between them.

    Args:
        inside: what is between the brackets.
        text: the list, for the message.

    Raises:
        ValueError: something is not quoted, where other items are; or quoted as nobody writes it.
    """
    quoted = _QUOTED.findall(inside)
    if quoted or "'" in inside or '"' in inside:
        if _QUOTED.sub("", inside).strip(", \r\n"):
            raise ValueError(f"expected a list of labels, all of them in quotes or none, got {shorten(repr(text))}")
        return [_unquoted(item) for item in quoted]
    return inside.removesuffix(",").split("," if "," in inside else None)


def _unquoted(item: str) -> str:
    """A quoted text of JSON or Python without its quotes. Raises ValueError if it is neither."""
    if "\\" not in item:
        return item[1:-1]
    with contextlib.suppress(ValueError):
        return json.loads(item)
    try:
        return ast.literal_eval(item)
    except SyntaxError:
        raise ValueError(f"expected a label in quotes as Python or JSON writes it, got {shorten(repr(item))}") from None
