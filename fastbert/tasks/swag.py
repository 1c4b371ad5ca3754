"""SWAG and other multiple-choice data sets: which ending continues the context best?"""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DataError
from ..result_files import atomic_write, written
from . import metrics
from .bad_rows import at_least_one, called, numbered
from .base import Example, LabelColumns, Row, Task, labels_of, packed, softmax
from .choice_conversions import OBJECTS, PLACES, apart, values_of
from .choice_files import (
    codah_records,
    copa_records,
    files_of,
    is_codah,
    is_mctest,
    is_xml,
    mctest_records,
    mmlu_records,
    with_labels,
)
from .choice_forms import CODAH, FORMS, FULL, REGULAR, SCIQ, further
from .choice_rows import OtherCount, label_column, label_of, row_of
from .encoding import encode_texts
from .files import of_rows, read_lines, shorten
from .hub_files import Record, is_hub_file, read_records
from .table_records import fields_of, table_records
from .tables import check_once
from .transformed import joined, parts_of, with_next_words
from .typed import read_typed

SOURCES = ("video-id", "source_id")
"""The columns that name what a row was taken from, in SWAG and in HellaSwag."""

_TABLES = [form for form in FORMS if len(form.endings) > 1]
_HEADERS = {
    REGULAR.columns: (REGULAR.label,),
    FULL: ("label",),
    SCIQ: ("label",),
    **{form.columns: tuple(own.label for own in _TABLES if own.columns == form.columns) for form in _TABLES},
}
"""The columns that the header of a table must have, and the names that its column of labels may have."""


class SWAG(Task):
    """SWAG's "regular" .csv (``sent1, sent2, ending0..3`` and, except in test files, ``label``) and "full" .csv
    (``gold-ending, distractor-0..3``), both with CSV quoting; CODAH's tab-separated files without header or quoting;
    .csv, JSON and Parquet with the columns of `choice_forms.FORMS`; and the files of `choice_files`. The texts of a row
    are its context and two or more endings, whose number may differ from row to row.

    Each ending makes a sequence ``[CLS] context [SEP] beginning and ending [SEP]``, as in Devlin et al. 2019.
    """

    name = "swag"
    metrics = ("accuracy",)
    submission = "swag_predictions.csv"
    pairs = True
    streams = True
    label_place = "labels as the last of CODAH's columns"

    def read(self, path: str | os.PathLike) -> list[Row]:
        return list(self.rows(path))

    def rows(self, path: str | os.PathLike) -> Iterator[Row]:
        if not os.path.isdir(path):
            return at_least_one(self._read(path), path, self.bad_rows)
        found = itertools.chain.from_iterable(map(self._read, files_of(path)))
        rows = (dataclasses.replace(row, id=str(index)) for index, row in numbered(found, self.bad_rows))
        return at_least_one(rows, path, self.bad_rows)

    def _read(self, path: str | os.PathLike) -> Iterator[Row]:
        self.looked_for = None
        for index, record in self._records(path):
            if record is None:
                continue
            try:
                row = row_of(index, record.values, self.predicting)
            except OtherCount as error:  # skipping such rows would keep those whose labels are off by one
                raise DataError(f"{record.where}: {error}") from None
            except ValueError as error:
                self.bad_rows.refuse(f"{record.where}: {error}")
                continue
            yield dataclasses.replace(row, source=_source(record.values))

    def _records(self, path: str | os.PathLike) -> Iterator[tuple[int, Record | None]]:
        """(index, record) of every row of a file, by the form of its first line; a record is None if its row has been
        refused."""
        if is_hub_file(path):
            return self._questions(with_labels(path, read_records(path, self.bad_rows, PLACES), self.bad_rows))
        typed, lines = read_typed(path, read_lines(path, self.bad_rows), OBJECTS, self.bad_rows)
        if typed is not None:
            return self._questions(typed)
        first = next(lines, None)
        if first is None and self.bad_rows.reasons:
            raise self.bad_rows.none_left(path, "rows")
        first = first or (1, "")
        whole = itertools.chain([first], lines)
        if is_xml(first[1]):
            return self._questions(copa_records(path, whole))
        if is_mctest(first[1]):
            return self._questions(mctest_records(path, whole, self.bad_rows))
        found = self._below_header(path, first, lines)
        if found is None and is_codah(first[1]):
            self._check_codah(f"{called(path)}, line {first[0]}", first[1].split("\t"))
            return numbered(codah_records(path, whole, self.bad_rows), self.bad_rows, first[0] - 1)
        found = found or mmlu_records(path, first, lines, self.bad_rows)
        if found is None:
            raise DataError(
                f"{called(path)}, line {first[0]}: expected a .csv header with {', '.join(REGULAR.columns)}, or with "
                f"{', '.join(FULL)}, or CODAH's {len(CODAH)} tab-separated columns, or MMLU's 6 of a .csv, got "
                f"{shorten(first[1])!r}; ARC, OpenBookQA and others are read from JSON lines and Parquet"
            )
        return found

    def _below_header(
        self, path: str | os.PathLike, first: tuple[int, str], lines: Iterator[tuple[int, str]]
    ) -> Iterator[tuple[int, Record | None]] | None:
        """(index, record) of the rows of a table with one of `_HEADERS`; None if the first line is none of them."""
        separator, where = "\t" if "\t" in first[1] else ",", f"{called(path)}, line {first[0]}"
        columns = fields_of(first[1], separator)
        form = next((form for form in _HEADERS if set(form) <= set(columns)), ())
        check_once((*form, *(further(form) if form else ()), "label"), columns, where)
        if not form:
            return None
        self.looked_for = LabelColumns(where, _HEADERS[form], columns)
        return self._whole(table_records(path, first, columns, separator, lines, self.bad_rows))

    def _whole(self, records: Iterator[tuple[int, Record | None]]) -> Iterator[tuple[int, Record | None]]:
        """Refuses rows of a table that do not have the columns of its header."""
        for index, record in records:
            if record is not None and not record.values:
                got = "expected all columns of the header, with closed quotes, got others"
                self.bad_rows.refuse(f"{record.where}: {got}")
                record = None
            yield index, record

    def _check_codah(self, where: str, fields: Sequence[str]) -> None:
        """Raises DataError, when predicting, if the first label is not one of CODAH's. Such a file is only recognised
        by its number of columns, and invalid labels are otherwise ignored when predicting; a header, or a file of
        another task, has no such label."""
        label = fields[-1].strip()
        if self.predicting and len(fields) == len(CODAH) and label_of(label) not in ("", *"0123"):
            raise DataError(
                f"{where}: of CODAH's {len(CODAH)} columns without a header expected the label to be one of 0 to 3, "
                f"got {label!r}"
            )

    def _questions(self, records: Iterable[Record | None]) -> Iterator[tuple[int, Record | None]]:
        """(index, record) of each question in a file's records; a record is None if it has been refused."""
        for index, record in numbered(self._apart(records), self.bad_rows):
            if self.looked_for is None and record is not None:
                self.looked_for = LabelColumns(record.where, (label_column(record.values),), tuple(record.values))
            yield index, record

    def _apart(self, records: Iterable[Record | None]) -> Iterator[Record | None]:
        """A record for each question in the records."""
        for record in records:
            try:
                questions = [None] if record is None else apart(values_of(record))
            except ValueError as error:
                self.bad_rows.refuse(f"{record.where}: {error}")
                continue
            for number, values in enumerate(questions, 1):
                where = "" if record is None else record.where
                where = f"{where}, question {number}" if len(questions) > 1 else where
                yield None if values is None else Record(where, values)

    def encode(self, rows: Sequence[Row], tokenizer, max_seqlen: int) -> list[Example]:
        """One example per row: its sequences end to end, with their lengths in ``meta``."""
        pairs = [(row.texts[0], ending) for row in rows for ending in row.texts[1:]]
        labels = [None if row.label is None else int(row.label) for row in rows]
        ends = np.cumsum([len(row.texts) - 1 for row in rows])
        parts = [slice(end - len(row.texts) + 1, end) for row, end in zip(rows, ends, strict=True)]
        if self.transform is not None:
            sequences = self.transform.sequences(pairs, tokenizer, max_seqlen)
            return [joined(i, sequences[part], labels[i]) for i, part in enumerate(parts)]
        encodings = encode_texts(pairs, tokenizer, max_seqlen)
        examples = []
        for index, part in enumerate(parts):
            own = encodings[part]
            ids = np.concatenate([encoding.ids for encoding in own])
            types = np.concatenate([encoding.type_ids for encoding in own])
            cut = any(encoding.truncated for encoding in own)
            examples.append(
                Example(index, ids, types, labels[index], cut, meta=[len(encoding.ids) for encoding in own])
            )
        return examples

    def model(self, directory: str | os.PathLike):
        from ..models.registry import of_model

        return self.load(of_model(directory).head("choice"), directory, ignore_mismatched_sizes=True)

    def collate(self, examples: Sequence[Example]):
        counts = tuple(len(example.meta) for example in examples)
        num_choices = counts if len(set(counts)) > 1 else counts[0]
        batch, keywords = packed(parts_of(examples)), {"num_choices": num_choices, **labels_of(examples)}
        if self.transform is None:
            return batch, keywords
        return with_next_words(batch), {"lm_weight": self.auxiliary_lm, **keywords}

    def decode(self, rows: Sequence[Row], examples: Sequence[Example], outputs: Sequence[np.ndarray]) -> list[str]:
        return [str(int(np.argmax(scores))) for scores in outputs]

    @property
    def probability_columns(self) -> tuple[str, ...]:
        """The header of `probabilities`."""
        return ("index", "ending", "probability")

    def probabilities(
        self, rows: Sequence[Row], examples: Sequence[Example], outputs: Sequence[np.ndarray]
    ) -> Iterator[Sequence]:
        """A line for each ending: the row's id, the number of the ending from 0, and its probability."""
        for row, scores in zip(rows, outputs, strict=True):
            # A batch with rows of several lengths pads the scores of the shorter ones.
            for number, share in enumerate(softmax(scores[: len(row.texts) - 1])):
                yield row.id, str(number), float(share)

    def metric(self, rows: Sequence[Row], predictions: Sequence[str]) -> dict[str, float]:
        return {"accuracy": metrics.accuracy([row.label for row in rows], predictions)}

    def guess(self, rows: Sequence[Row]) -> list[str]:
        """The number of the ending that is most often the right one, for every row."""
        labels = [row.label for row in rows]
        return [max(sorted(set(labels)), key=labels.count)] * len(rows)

    def tables(self, rows: Sequence[Row], predictions: Sequence[str]) -> dict[str, list[Sequence]]:
        """How often each ending was right, how often it was chosen, and how often both."""
        table: list[Sequence] = [("ending", "right", "chosen", "both")]
        for choice in map(str, range(max(len(row.texts) for row in rows) - 1)):
            right = [row.label == choice for row in rows]
            chosen = [prediction == choice for prediction in predictions]
            table.append((choice, sum(right), sum(chosen), sum(map(min, right, chosen))))
        return {"endings": table}

    def write_predictions(self, rows: Iterable[Row], predictions: Iterable[str], path: str | os.PathLike) -> list[Path]:
        """Writes ``index,label`` as .csv: the number of the row in its file, from 0, and of the ending."""
        with atomic_write(path) as file:
            file.write("index,label\n")
            for row, prediction in zip(rows, predictions, strict=True):
                file.write(f"{row.id},{prediction}\n")
        return written(path)

    def read_predictions(self, rows: Sequence[Row], path: str | os.PathLike) -> list[str]:
        found: dict[str, str] = {}
        choices = {row.id: len(row.texts) - 1 for row in rows}
        for number, line in list(read_lines(path))[1:]:
            if not line.strip():
                continue
            fields = [field.strip() for field in line.split(",")]
            most = choices.get(fields[0], max(choices.values()))
            if len(fields) != 2 or fields[1] not in map(str, range(most)) or fields[0] in found:
                raise DataError(
                    f"{path}, line {number}: expected 'index,label' with a label from 0 to {most - 1} and every index "
                    f"once, got {shorten(line)!r}"
                )
            found[fields[0]] = fields[1]
        return of_rows(found, rows, path, self.bad_rows)

    def errors(self, rows: Sequence[Row], predictions: Sequence[str]) -> Iterable[dict]:
        for row, prediction in zip(rows, predictions, strict=True):
            if row.label != prediction:
                context, *endings = row.texts
                yield {
                    "id": row.id,
                    "context": context,
                    "right": endings[int(row.label)],
                    "chosen": endings[int(prediction)],
                }


def _source(values: dict[str, Any]) -> str | None:
    """The video or page that a row was taken from; None if there is no such column."""
    return next((values[name] for name in SOURCES if isinstance(values.get(name), str) and values[name].strip()), None)
