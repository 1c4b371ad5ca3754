"""SWAG and other sets of four endings: which of them goes on best?"""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DataError
from . import metrics
from .bad_rows import called, numbered, some
from .base import Example, LabelColumns, Row, Task, labels_of, packed
from .csv_records import csv_fields, csv_records
from .encoding import encode_texts
from .files import atomic_write, of_rows, read_lines, shorten, written
from .hub_files import Record, class_number, is_hub_file, read_records
from .tables import check_once, rows_below
from .transformed import joined, parts_of, with_next_words
from .typed import read_typed

CHOICES = 4
REGULAR = ("sent1", "sent2", *(f"ending{i}" for i in range(CHOICES)))
FULL = ("sent1", "sent2", "gold-ending", *(f"distractor-{i}" for i in range(CHOICES)))
CODAH = ("category", "prompt", *(f"ending{i}" for i in range(CHOICES)), "label")


LISTS = (
    ("ctx_a", "ctx_b", "endings", "label"),  # HellaSwag on hubs
    ("ctx_a", "ctx_b", "ending_options", "label"),  # and as its authors publish it
    ("question_propmt", "", "candidate_answers", "correct_answer_idx"),  # CODAH on hubs, misspelt there
    ("article", "question", "options", "answer"),  # RACE
    ("question", "", "choices", "answerKey"),  # ARC, and CommonsenseQA, which has five
    ("question_stem", "", "choices", "answerKey"),  # OpenBookQA
    ("question", "", "choices", "answer"),  # MMLU
)
"""Context, beginning of every ending, list of endings, label."""
SOURCES = ("video-id", "source_id")
"""Columns of what a row was taken from: SWAG's and HellaSwag's."""
OBJECTS = (REGULAR, FULL[:-1], *((context, endings) for context, _, endings, _ in LISTS))
"""Keys of a row in JSON, all of one of these: the last distractor is not used."""


class SWAG(Task):
    """SWAG's "regular" .csv (``sent1, sent2, ending0..3`` and, but for test files, ``label``) and "full" .csv
    (``gold-ending, distractor-0..3``), both with CSV quoting; CODAH's tab-separated files without header or quoting
    (``category, prompt, ending0..3, label``); HellaSwag's JSON lines; and all three as data-set hubs have them, from
    which RACE, ARC, OpenBookQA and MMLU are read too. A row's texts are its context and four endings.

    Each ending makes a sequence ``[CLS] context [SEP] beginning and ending [SEP]``, as in Devlin et al. 2019.
    """

    name = "swag"
    metrics = ("accuracy",)
    submission = "swag_predictions.csv"
    streams = True
    label_place = "labels as the last of CODAH's columns"

    def read(self, path: str | os.PathLike) -> list[Row]:
        return list(self.rows(path))

    def rows(self, path: str | os.PathLike) -> Iterator[Row]:
        return some(self._read(path), path, self.bad_rows)

    def _read(self, path: str | os.PathLike) -> Iterator[Row]:
        self.label_columns = None
        if is_hub_file(path):
            yield from self._rows_of(path, read_records(path, self.bad_rows))
            return
        lines = read_lines(path, self.bad_rows)
        typed, lines = read_typed(path, lines, OBJECTS, self.bad_rows)
        if typed is not None:
            yield from self._rows_of(path, typed)
            return
        first = next(lines, None)
        if first is None and self.bad_rows.reasons:
            raise self.bad_rows.none_left(path, "rows")
        first = first or (1, "")
        header = csv_fields(first[1])
        form = next((form for form in (REGULAR, FULL) if set(form) <= set(header)), ())
        check_once((*form, "label"), header, f"{called(path)}, line {first[0]}")
        if form:
            lines = rows_below(first, lines, header, path, self.bad_rows)
        if form == REGULAR:
            self.label_columns = LabelColumns(f"{called(path)}, line {first[0]}", ("label",), header)
            make, records = _regular, enumerate(csv_records(itertools.chain([first], lines), header))
        elif form == FULL:
            make, records = _full, enumerate(csv_records(itertools.chain([first], lines), header))
        elif len(first[1].split("\t")) in (len(CODAH), len(CODAH) - 1):
            self._check_codah(f"{called(path)}, line {first[0]}", first[1].split("\t"))
            lines = itertools.chain([first], lines)
            fields = ((number, line.split("\t")) for number, line in lines if line.strip())
            make, records = _codah, numbered(fields, self.bad_rows)
        else:
            raise DataError(
                f"{called(path)}, line 1: expected a .csv header with {', '.join(REGULAR)}, or with "
                f"{', '.join(FULL)}, or CODAH's {len(CODAH)} tab-separated columns, got {shorten(first[1])!r}"
            )
        yield from self._rows(make, ((i, (f"{called(path)}, line {number}", row)) for i, (number, row) in records))

    def _check_codah(self, where: str, fields: Sequence[str]) -> None:
        """The number of its columns alone says that a file is CODAH's, and predictions ask nobody for labels: so the
        first must be one. A header's and another task's are none."""
        label = fields[-1].strip()
        if self.predicting and len(fields) == len(CODAH) and _label(label) not in (None, *map(str, range(CHOICES))):
            raise DataError(
                f"{where}: of CODAH's {len(CODAH)} columns without a header expected the label to be one of 0 to "
                f"{CHOICES - 1}, got {label!r}"
            )

    def _rows_of(self, path: str | os.PathLike, records: Iterable[Record | None]) -> Iterator[Row]:
        """The rows that records of a file hold; None stands for one that was refused already."""
        found = (("", None) if record is None else (record.where, record.values) for record in records)
        return self._rows(_of_hub, numbered(found, self.bad_rows))

    def _rows(self, make, records: Iterable) -> Iterator[Row]:
        for index, (where, fields) in records:
            if fields is None:  # refused already, as a line
                continue
            if index == 0 and make is _of_hub:
                form = _form_of(fields)
                self.label_columns = LabelColumns(where, ("label",) if form is None else form[-1:], tuple(fields))
            try:
                row = _checked(make(index, fields), self.predicting)
            except ValueError as error:
                self.bad_rows.refuse(f"{where}: {error}")
                continue
            yield dataclasses.replace(row, source=_source(fields))

    def encode(self, rows: Sequence[Row], tokenizer, max_seqlen: int) -> list[Example]:
        """An example a row: its four sequences one after the other, with their lengths in ``meta``."""
        pairs = [(row.texts[0], ending) for row in rows for ending in row.texts[1:]]
        if self.transform is not None:
            parts = self.transform.sequences(pairs, tokenizer, max_seqlen)
            labels = [None if row.label is None else int(row.label) for row in rows]
            return [joined(i, parts[i * CHOICES : (i + 1) * CHOICES], label) for i, label in enumerate(labels)]
        encodings = encode_texts(pairs, tokenizer, max_seqlen)
        examples = []
        for index, row in enumerate(rows):
            four = encodings[index * CHOICES : (index + 1) * CHOICES]
            ids = np.concatenate([encoding.ids for encoding in four])
            types = np.concatenate([encoding.type_ids for encoding in four])
            cut = any(encoding.truncated for encoding in four)
            label = None if row.label is None else int(row.label)
            examples.append(Example(index, ids, types, label, cut, meta=[len(encoding.ids) for encoding in four]))
        return examples

    def model(self, directory: str | os.PathLike):
        from ..models.registry import of_model

        cls = of_model(directory).head("choice")
        return cls.from_pretrained(directory, ignore_mismatched_sizes=True, **self.on_top())

    def collate(self, examples: Sequence[Example]):
        batch, keywords = packed(parts_of(examples)), {"num_choices": CHOICES, **labels_of(examples)}
        if self.transform is None:
            return batch, keywords
        return with_next_words(batch), {"lm_weight": self.auxiliary_lm, **keywords}

    def decode(self, rows: Sequence[Row], examples: Sequence[Example], outputs: Sequence[np.ndarray]) -> list[str]:
        return [str(int(np.argmax(scores))) for scores in outputs]

    def metric(self, rows: Sequence[Row], predictions: Sequence[str]) -> dict[str, float]:
        return {"accuracy": metrics.accuracy([row.label for row in rows], predictions)}

    def guess(self, rows: Sequence[Row]) -> list[str]:
        """The ending that is right most often, by its place."""
        labels = [row.label for row in rows]
        return [max(sorted(set(labels)), key=labels.count)] * len(rows)

    def tables(self, rows: Sequence[Row], predictions: Sequence[str]) -> dict[str, list[Sequence]]:
        """How often each ending was right and was chosen."""
        table: list[Sequence] = [("ending", "right", "chosen", "both")]
        for choice in map(str, range(CHOICES)):
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
        for number, line in list(read_lines(path))[1:]:
            if not line.strip():
                continue
            fields = [field.strip() for field in line.split(",")]
            if len(fields) != 2 or fields[1] not in map(str, range(CHOICES)) or fields[0] in found:
                raise DataError(
                    f"{path}, line {number}: expected 'index,label' with a label from 0 to {CHOICES - 1} and every "
                    f"index once, got {shorten(line)!r}"
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


def _source(fields: dict[str, Any] | Sequence[str]) -> str | None:
    """The video or page that a row was taken from; None where there is no such column."""
    named = fields if isinstance(fields, dict) else {}
    return next((named[name] for name in SOURCES if isinstance(named.get(name), str) and named[name].strip()), None)


def _of_hub(index: int, values: dict[str, Any]) -> Row:
    """A row as data-set hubs have it: SWAG's columns, or the endings as a list."""
    texts = {name: str(value).strip() for name, value in values.items()}
    if set(REGULAR) <= set(texts):
        return _regular(index, texts)
    if set(FULL[:-1]) <= set(texts):
        return _full(index, dict.fromkeys(FULL, "") | texts)
    form = _form_of(values)
    if form is None:
        raise ValueError(
            f"expected all columns of SWAG ({', '.join(REGULAR)}), HellaSwag, CODAH, RACE, ARC, OpenBookQA or MMLU, "
            f"got {shorten(', '.join(values))}"
        )
    context, beginning, endings, label = form
    choices, letters = values[endings], list("ABCD")
    if isinstance(choices, dict):  # of two lists, the endings and what the label calls them
        choices, letters = choices["text"], choices.get("label") or letters
    joined = _joined(texts.get(beginning, ""), [str(choice).strip() for choice in choices])
    named = texts.get(label)
    return Row(str(index), (texts[context], *joined), _label(str(letters.index(named)) if named in letters else named))


def _form_of(values: dict[str, Any]) -> tuple[str, str, str, str] | None:
    """Which of `LISTS` an object has, with its label where several have its texts."""

    def fits(context: str, endings: str) -> bool:
        found = values.get(endings)
        found = found.get("text") if isinstance(found, dict) else found
        flat = isinstance(found, list) and not any(isinstance(ending, (list, dict)) for ending in found)
        return flat and isinstance(values.get(context), str)

    found = [form for form in LISTS if fits(form[0], form[2])]
    return next((form for form in found if form[-1] in values), found[0] if found else None)


def _regular(index: int, values: dict[str, str]) -> Row:
    if not values:
        raise ValueError("expected all columns of the header, with closed quotes, got others")
    endings = [values[f"ending{i}"] for i in range(CHOICES)]
    return Row(str(index), (values["sent1"], *_joined(values["sent2"], endings)), _label(values.get("label")))


def _label(text: str | None) -> str | None:
    """-1 is how data-set hubs write that there is none; pandas writes numbers with gaps between them as 2.0."""
    if text is None or text in ("", "-1", "-1.0"):
        return None
    number = class_number(text)
    return text if number is None else str(number)


def _full(index: int, values: dict[str, str]) -> Row:
    """The right ending of a "full" row goes to a place that its number decides, so that no place is favoured."""
    if not values:
        return _regular(index, values)
    endings = [values[f"distractor-{i}"] for i in range(CHOICES) if values[f"distractor-{i}"]]
    place = index % CHOICES
    four = [*endings[:place], values["gold-ending"], *endings[place : CHOICES - 1]]
    return Row(str(index), (values["sent1"], *_joined(values["sent2"], four)), str(place))


def _joined(beginning: str, endings: Sequence[str]) -> list[str]:
    if len(endings) != CHOICES or not all(endings):
        got = "an empty one" if len(endings) == CHOICES else len(endings)
        raise ValueError(f"expected {CHOICES} endings, got {got}")
    return [f"{beginning} {ending}".strip() for ending in endings]


def _codah(index: int, fields: Sequence[str]) -> Row:
    if len(fields) not in (len(CODAH), len(CODAH) - 1):
        raise ValueError(f"expected {len(CODAH)} tab-separated columns ({', '.join(CODAH)}), got {len(fields)}")
    values = dict(zip(CODAH, map(str.strip, fields), strict=False))
    endings = [values[f"ending{i}"] for i in range(CHOICES)]
    return Row(str(index), (values["prompt"], *_joined("", endings)), _label(values.get("label")))


def _checked(row: Row, ignore_label: bool) -> Row:
    if not row.texts[0]:
        raise ValueError("expected a text before the endings, got an empty one")
    if row.label is not None and row.label not in map(str, range(CHOICES)):
        if ignore_label:
            return dataclasses.replace(row, label=None)
        raise ValueError(f"expected the label to be one of 0 to {CHOICES - 1}, got {row.label!r}")
    return row
