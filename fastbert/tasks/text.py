"""Tasks with one label for a text or a pair: what classification and regression share."""

from __future__ import annotations

import abc
import itertools
import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..data.special_tokens import has_types
from ..errors import DataError, InputError
from ..result_files import atomic_write, written
from .bad_rows import at_least_one, called, numbered
from .base import Example, LabelColumns, Row, labels_of, packed
from .class_labels import exported_label
from .encoding import encode_texts
from .exported import exported_rows, id_names, naming_column, read_table_of_hub, text_forms, with_own_header
from .feature_task import FeatureTask
from .files import of_rows, read_lines
from .hub_files import NO_LABEL, Record, is_hub_file, read_records
from .labelled import directory_records, line_records
from .parts import SPLIT, Parts
from .tables import check_once, read_table
from .transformed import joined, parts_of, with_next_words
from .typed import read_typed

if TYPE_CHECKING:
    import numpy as np

    from ..packing import PackedBatch
    from .config import TaskOptions

_EXCEL = re.compile(r'"?sep=."?')
"""The line before the header by which Excel knows what separates the columns."""


class TextTask(FeatureTask):
    """A subclass defines its columns, how a label is written in a file, its head and its metrics.

    Attributes:
        text_columns: the columns of the text or of the pair.
        label_column: the column of the labels; a file without it is a test file.
        no_label: what a file has in place of labels that it lacks.
        similarity: whether the order of a pair does not matter, so that a GPT reads both orders.
        id_column: the column of row ids in the authors' files. Any of `exported.id_names` will do; without one, rows
            are numbered from 0.
        source_columns: the columns that tell what a row was taken from. In a file with all of them, ``id`` is the
            number of the row in its source, not an id.
        counts: the numbers of text columns that the task may have; empty for the number in `text_columns`.
        bare_columns: the columns of files without a header; empty if the task has no such files.
        extra_columns: whether rows of such files may have further columns.
        own_files: whether labels may also be where `labelled` looks for them.
        quoted: whether tab-separated texts may have the quotes of a CSV writer.
        several_labels: whether a text may have several labels, or none.
        only_texts: whether no other columns are read; then standard input needs a header too, whose lines may
            otherwise be nothing but texts.
        columns_hint: what the user can do about columns with other names, for messages.
    """

    streams = True
    text_columns: tuple[str, ...] = ("sentence",)
    label_column: str = "label"
    no_label: tuple[str, ...] = NO_LABEL
    similarity: bool = False
    id_column: str = "index"
    source_columns: tuple[str, ...] = ()
    counts: tuple[int, ...] = ()
    bare_columns: tuple[str, ...] = ()
    extra_columns: bool = False
    own_files: bool = False
    quoted: bool = False
    several_labels: bool = False
    only_texts: bool = False
    columns_hint: str = " (--text-columns and --label-column name others)"

    @abc.abstractmethod
    def parse(self, text: str) -> Any:
        """Parses a label in a file into the form that the metric compares. Raises ValueError, saying what was
        expected."""

    def show(self, prediction: Any) -> str:
        """A prediction in the submission format; numbers have all digits, so that a file gets the same score."""
        return str(prediction)

    @abc.abstractmethod
    def target(self, label: Any) -> int | float | np.ndarray:
        """A label in the form that the loss needs. Raises ValueError, saying what was expected."""

    @abc.abstractmethod
    def head(self) -> dict:
        """The configuration of the head, as keyword arguments of `from_pretrained`."""

    def configure(self, options: TaskOptions) -> None:
        super().configure(options)
        counts = self.counts or (len(type(self).text_columns),)
        if len(self.text_columns) not in counts:
            expected = " or ".join(map(str, counts))
            raise InputError(
                f"text_columns of the task {self.name} must be {expected} in number, got {', '.join(self.text_columns)}"
            )
        if self.texts_named or self.label_named:
            self.bare_columns, self.extra_columns = (), False  # these describe the task's own files

    @property
    def pairs(self) -> bool:
        return len(self.text_columns) > 1

    @property
    def texts_named(self) -> bool:
        """Whether the user has named the text columns, so that no others are looked for."""
        return self.text_columns != type(self).text_columns

    @property
    def label_fields(self) -> tuple[str, ...]:
        """The names that the column of labels may have, in the order in which they are looked for."""
        if self.only_texts:
            return ()
        return (self.label_column,) if self.label_named else tuple(dict.fromkeys((self.label_column, "label")))

    def labels_at(self, columns: Collection[str]) -> tuple[str, ...]:
        """Those of a file's columns from which labels are taken; none in a file without labels."""
        return tuple(itertools.islice((name for name in self.label_fields if name in columns), 1))

    @property
    def label_named(self) -> bool:
        """Whether the user has named the column of labels, so that no other is looked for."""
        return self.label_column != type(self).label_column

    def read(self, path: str | os.PathLike) -> list[Row]:
        return list(self.rows(path))

    def rows(self, path: str | os.PathLike) -> Iterator[Row]:
        return at_least_one(self._rows(path), path, self.bad_rows)

    def _rows(self, path: str | os.PathLike) -> Iterator[Row]:
        told = len(self.bad_rows.reasons)
        if self.own_files and os.path.isdir(path):
            records = directory_records(path, self.bad_rows)
        elif is_hub_file(path):
            records = read_records(path, self.bad_rows)
        else:
            # The lines that tell the forms apart are read once: a pipe cannot be opened again, and bad rows must not be
            # counted twice.
            lines = read_lines(path, self.bad_rows)
            records, lines = read_typed(path, lines, text_forms(self), self.bad_rows)
        if records is None:
            yield from self._rows_of_lines(path, lines, told)
        else:
            yield from exported_rows(self, path, numbered(records, self.bad_rows))

    def _rows_of_lines(self, path: str | os.PathLike, lines: Iterator[tuple[int, str]], told: int) -> Iterator[Row]:
        """The rows of a file that is not JSON, by the form of its first line; ``told`` is how many bad rows there were
        before this file."""
        lines = with_own_header(self, lines)
        first = next(lines, None)
        if first is not None and _EXCEL.fullmatch(first[1]):
            first = next(lines, None)
        if first is None:
            return self._authors_rows(path, lines)
        lost = len(self.bad_rows.reasons) - told  # lines before the first that were not UTF-8
        if self.own_files and not self.texts_named:
            records = line_records(path, first, lines, self.bad_rows, several=self.several_labels)
            if records is not None:
                return exported_rows(self, path, numbered(records, self.bad_rows, lost))
        exported = read_table_of_hub(self, path, first, lines, lost)
        return self._authors_rows(path, itertools.chain([first], lines)) if exported is None else exported

    def _authors_rows(self, path: str | os.PathLike, lines: Iterator[tuple[int, str]]) -> Iterator[Row]:
        """The rows of a file as the authors of a data set publish it: tab-separated, without quoting."""
        bare = [self.bare_columns] if self.bare_columns else []
        if os.fspath(path) == "-" and not self.only_texts:
            bare.append(self.text_columns)  # typed input: only texts
        table = read_table(
            path,
            self.text_columns,
            (*self.label_fields[:1], *id_names(self)),
            noted=(SPLIT,),
            bare=bare,
            form="a tab-separated file (or .csv)",
            hint=self.columns_hint,
            is_bare=self.is_bare,
            extra=self.extra_columns,
            quoted=self.quoted,
            bad_rows=self.bad_rows,
            lines=lines,
        )
        texts_at = [table.position(column) for column in self.text_columns]
        self.looked_for = LabelColumns(table.where, (self.label_column,), table.header)
        label_at = table.position(self.label_column)
        names = naming_column(self, table.header)
        id_at = None if names is None else table.position(names)
        check_once([name for name in (self.label_column, names) if name in table.columns], table.header, table.where)
        check_bare = self.predicting and label_at is not None and table.header == self.bare_columns
        seen: set[str] = set()
        split_at, parts = table.position(SPLIT), Parts(path, tabs=True)
        for line in table.lines:
            if split_at is not None:
                parts.add(line.fields[split_at])
            if check_bare:
                self._check_bare(table.where, self.plain(line.fields[label_at].strip()))
                check_bare = False
            name = str(line.index) if id_at is None else line.fields[id_at].strip()
            texts = tuple(self.plain(line.fields[at].strip()) for at in texts_at)
            try:
                label = None if label_at is None else self.answer(self.plain(line.fields[label_at].strip()))
                self.check_texts(texts, labelled=label is not None)
                self.check_id(name, seen, numbered=id_at is None)
            except ValueError as error:
                self.bad_rows.refuse(f"{called(path)}, line {line.number}: {error}")
                continue
            yield Row(name, texts, label)
        if not self.predicting:
            parts.say(table.header)

    def plain(self, text: str) -> str:
        """The text in a tab-separated field. In the authors' files quotes belong to it, as in GLUE's own readers."""
        return text

    def label_in(self, record: Record) -> Any:
        """The label of a record of an exported file, as by `label_of`."""
        for name in self.labels_at(record.values):
            return self.label_of(record.values[name], record.names.get(name, ()))
        return None

    def label_of(self, value: Any, names: Sequence[str]) -> Any:
        """The label of a record of an exported file, in the form that the metric compares; None if there is none.

        Args:
            value: what the file has.
            names: the names of the file's classes, if it has any.

        Raises:
            ValueError: it is not a label of the task; says what was expected.
        """
        label = exported_label(self, value, names)
        return None if label is None else self.answer(label)

    def is_bare(self, fields: Sequence[str]) -> bool:
        """Whether a first line with as many fields as `bare_columns` is a row of a file without a header."""
        return True

    def _check_bare(self, where: str, label: str) -> None:
        """Raises DataError if the first label of a file without a header is not one of the task's. Such a file is only
        recognised by its number of columns, which is the same for RTE and CoLA, and invalid labels are otherwise
        ignored when predicting."""
        try:
            self.parse(label)
        except ValueError as error:
            columns = ", ".join(self.bare_columns)
            raise DataError(
                f"{where}: of {len(self.bare_columns)} columns without a header ({columns}) {error}"
            ) from None

    def answer(self, text: str) -> Any:
        """Parses a label as `parse` does, but when predicting returns None for an invalid one."""
        try:
            return self.parse(text)
        except ValueError:
            if self.predicting:
                return None
            raise

    def check_texts(self, texts: Sequence[str], labelled: bool) -> None:
        """Raises ValueError for a row without text. Half of a pair may be empty in rows without a label, and when
        predicting: every row of a test file must be answered, and some of GLUE's have empty halves."""
        if not (all(texts) if labelled and not self.predicting else any(texts)):
            raise ValueError("expected a text in every text column, got an empty one")

    def encode(self, rows: Sequence[Row], tokenizer, max_seqlen: int) -> list[Example]:
        if self.transform is not None:
            return self._transformed(rows, tokenizer, max_seqlen)
        if self.features is not None and self.pairs and not has_types(tokenizer):
            raise InputError(
                f"task {self.name}: features of pairs are told apart by token types, expected a tokenizer that has "
                "them, got one whose class, model_input_names or template leave token_type_ids out"
            )
        encodings = encode_texts([row.texts for row in rows], tokenizer, max_seqlen)
        examples = [
            Example(
                index,
                encoding.ids,
                encoding.type_ids,
                label=None if row.label is None else self._target(row),
                truncated=encoding.truncated,
            )
            for index, (row, encoding) in enumerate(zip(rows, encodings, strict=True))
        ]
        return self.with_features(examples)

    def _transformed(self, rows: Sequence[Row], tokenizer, max_seqlen: int) -> list[Example]:
        """Examples of one sequence, or of a pair in both orders."""
        orders = self._orders
        texts = [row.texts[::step] for row in rows for step in (1, -1)[:orders]]
        parts = self.transform.sequences(texts, tokenizer, max_seqlen)
        labels = [None if row.label is None else self._target(row) for row in rows]
        return [joined(i, parts[i * orders : (i + 1) * orders], label) for i, label in enumerate(labels)]

    @property
    def _orders(self) -> int:
        return 2 if self.similarity and self.transform is not None else 1

    def collate(self, examples: Sequence[Example]) -> tuple[PackedBatch, dict[str, Any]]:
        if self.transform is None:
            batch, keywords = super().collate(examples)
            return batch, keywords | self.kept_features(examples)
        keywords = {"orders": self._orders, "lm_weight": self.auxiliary_lm, **labels_of(examples)}
        return with_next_words(packed(parts_of(examples))), keywords

    def _target(self, row: Row) -> int | float | np.ndarray:
        try:
            return self.target(row.label)
        except ValueError as error:
            raise DataError(f"row {row.id}: {error}") from None

    def model(self, directory: str | os.PathLike):
        if self.features is not None:
            from .feature_classifier import FeatureClassifier

            return self.load_head(FeatureClassifier, directory, feature_pairs=self.pairs, **self.head())
        from ..models.registry import of_model

        # A model of a task with other labels is a good start (RTE from MNLI), but its head cannot be used.
        head = of_model(directory).head("sequence")
        return self.load(head, directory, ignore_mismatched_sizes=True, **self.head())

    def write_predictions(self, rows: Iterable[Row], predictions: Iterable, path: str | os.PathLike) -> list[Path]:
        """Writes GLUE's submission format: ``index<TAB>prediction``."""
        with atomic_write(path) as file:
            file.write("index\tprediction\n")
            for row, prediction in zip(rows, predictions, strict=True):
                file.write(f"{row.id}\t{self.show(prediction)}\n")
        return written(path)

    def read_predictions(self, rows: Sequence[Row], path: str | os.PathLike) -> list:
        table = read_table(path, ("index", "prediction"))
        id_at, prediction_at = table.position("index"), table.position("prediction")
        found: dict[str, Any] = {}
        for line in table.lines:
            index, where = line.fields[id_at].strip(), f"{path}, line {line.number}"
            if index in found:
                raise DataError(f"{where}: index {index} occurs twice")
            try:
                found[index] = self.parse(line.fields[prediction_at].strip())
            except ValueError as error:
                raise DataError(f"{where}: {error}") from None
        return of_rows(found, rows, path, self.bad_rows)
