"""Multiple-choice files that are neither JSON nor tables with a header: COPA's XML, MMLU's .csv, CODAH's and MCTest's
.tsv, directories; and labels in a file of their own."""

from __future__ import annotations

import itertools
import os
import re
import xml.etree.ElementTree
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import DataError
from . import beside
from .bad_rows import BadRows, called, numbered
from .choice_forms import CODAH, LETTERS
from .choice_rows import label_column
from .csv_records import csv_records
from .files import read_lines
from .hub_files import Record
from .table_records import to_records

SUFFIXES = (".txt", ".csv")
"""The suffixes of the files in RACE's and MMLU's directories."""
_PARTS = frozenset(["train", "auxiliary_train", "dev", "val", "test"])
_MCTEST = 3 + 4 * 5  # columns: number, notes, story, and four questions with four answers each
_MMLU = ("1", "2", "3", "4", "5", "6")
_LETTERED = (("A", "B", "C"), ("B", "C", "D"))
"""How headers end that name a column after the letter of its answer: they are no rows of MMLU."""

_CODAH = (len(CODAH), len(CODAH) - 1)
_CATEGORY = re.compile("[a-z]?")
"""Of CODAH's questions: a letter, or nothing."""


def files_of(path: str | os.PathLike) -> list[Path]:
    """The files in a directory and its subdirectories, sorted by path.

    Raises:
        DataError: there are none, or the directory has several parts of a data set, so that the test part would be
            trained on.
    """
    parts = sorted(_PARTS.intersection(entry.name for entry in Path(path).iterdir() if entry.is_dir()))
    if len(parts) > 1:
        raise DataError(f"{path}: expected the directory of one part, got one that has {', '.join(parts)}")
    found = (file for file in Path(path).rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file())
    files = sorted(file for file in found if not file.name.startswith("."))
    if not files:
        raise DataError(f"{path}: expected files called {' or '.join(SUFFIXES)} in the directory, got none")
    return files


def is_xml(text: str) -> bool:
    """Whether a file that begins with this line is XML."""
    return text.lstrip().startswith(("<?xml", "<copa-corpus"))


def copa_records(path: str | os.PathLike, lines: Iterator[tuple[int, str]]) -> Iterator[Record]:
    """COPA's items in the form of SuperGLUE's JSON, where alternatives are counted from 0.

    Raises:
        DataError: the file is not XML, or has no items.
    """
    try:
        root = xml.etree.ElementTree.fromstring("\n".join(line for _, line in lines))
    except xml.etree.ElementTree.ParseError as error:
        raise DataError(f"{called(path)}: expected XML, got an error in it: {error}") from None
    items = list(root.iter("item"))
    if not items:
        raise DataError(f"{called(path)}: expected COPA's XML with items, got none in <{root.tag}>")
    for number, item in enumerate(items, 1):
        values: dict[str, Any] = {
            name: "".join(part.itertext()).strip()
            for name, part in (("premise", item.find("p")), ("choice1", item.find("a1")), ("choice2", item.find("a2")))
            if part is not None
        }
        right = item.get("most-plausible-alternative", "").strip()
        values |= {"question": item.get("asks-for"), "label": int(right) - 1 if right.isdecimal() else right}
        yield Record.of(f"{called(path)}, item {item.get('id', number)}", values)


def mmlu_records(
    path: str | os.PathLike, first: tuple[int, str], lines: Iterator[tuple[int, str]], bad_rows: BadRows
) -> Iterator[tuple[int, Record | None]] | None:
    """(index, record) of the rows of a .csv without a header, if the first is a row of MMLU: a question, four answers,
    and the letter of the right one. None for any other file. A record is None if its row has been refused.

    Args:
        path: the file, for messages.
        first, lines: the file's first line and the following ones, with their numbers.
        bad_rows: what to do with rows of another number of columns.
    """
    lost = first[0] - 1  # lines that were not UTF-8 were rows too
    found = csv_records(itertools.chain([first], lines), None, before=lost)
    row = next(found, (0, {}))
    fields = tuple((row[1] or {}).values())
    is_row = len(fields) == len(_MMLU) and fields[-1] in tuple(LETTERS[:4]) and fields[-3:] not in _LETTERED
    return _of_mmlu(path, enumerate(itertools.chain([row], found), lost), bad_rows) if is_row else None


def _of_mmlu(
    path: str | os.PathLike, rows: Iterator[tuple[int, tuple[int, dict[str, str] | None]]], bad_rows: BadRows
) -> Iterator[tuple[int, Record | None]]:
    for index, record in to_records(path, rows):
        if record is None:
            yield index, None
        elif set(record.values) == set(_MMLU):
            question, *choices, answer = (record.values[name] for name in _MMLU)
            yield index, Record(record.where, {"question": question, "choices": choices, "answer": answer})
        else:
            columns = "MMLU's six columns (question, four answers, letter), with closed quotes"
            bad_rows.refuse(f"{record.where}: expected {columns}, got others")
            yield index, None


def is_codah(line: str) -> bool:
    """Whether a file that begins with this line may be one of CODAH's, by the number of its columns; without labels,
    which tell headers and others' files apart, also by its first category."""
    fields = line.split("\t")
    return len(fields) == len(CODAH) or (len(fields) in _CODAH and bool(_CATEGORY.fullmatch(fields[0].strip())))


def codah_records(path: str | os.PathLike, lines: Iterator[tuple[int, str]], bad_rows: BadRows) -> Iterator[Record]:
    """The rows of a file with CODAH's columns, of which test files lack the label."""
    for number, line in lines:
        if not line.strip():
            continue
        where, fields = f"{called(path)}, line {number}", line.split("\t")
        if len(fields) in _CODAH:
            yield Record(where, dict(zip(CODAH, fields, strict=False)))
        else:
            columns = f"{len(CODAH)} tab-separated columns ({', '.join(CODAH)})"
            bad_rows.refuse(f"{where}: expected {columns}, got {len(fields)}")


def is_mctest(line: str) -> bool:
    """Whether a file that begins with this line is one of MCTest's: its questions begin with how many sentences of the
    story they need."""
    fields = line.split("\t")
    return len(fields) == _MCTEST and fields[3].startswith(("one:", "multiple:"))


def mctest_records(
    path: str | os.PathLike, lines: Iterator[tuple[int, str]], bad_rows: BadRows
) -> Iterator[Record | None]:
    """The questions of MCTest's stories; their answers are letters in a file with the suffix .ans beside, if it is
    there.

    Raises:
        DataError: that file has not four answers for each story.
    """
    file = beside.answers(path)
    read = read_lines(file, bad_rows) if file.is_file() else None
    answers = None if read is None else [line.split() for _, line in read if line.strip()]
    stories = [(number, line.split("\t")) for number, line in lines if line.strip()]
    if answers is not None and [4] * len(stories) != list(map(len, answers)):
        raise DataError(f"{file}: expected four answers for each of the {len(stories)} stories of {path}, got others")
    for (number, fields), right in zip(stories, answers or [[]] * len(stories), strict=False):
        for question in range(4):
            where = f"{called(path)}, line {number}, question {question + 1}"
            if len(fields) != _MCTEST:  # for each question, as each is a row
                bad_rows.refuse(f"{where}: expected MCTest's {_MCTEST} tab-separated columns, got {len(fields)}")
                continue
            asked, *options = fields[3 + 5 * question : 8 + 5 * question]
            values: dict[str, Any] = {
                "story": fields[2].replace("\\newline", " ").replace("\\tab", " "),
                "question": asked.partition(":")[2].strip(),
                "answer_options": options,
                "answer": right[question] if right else None,
            }
            yield Record.of(where, values)


def with_labels(path: str | os.PathLike, records: Iterator[Record], bad_rows: BadRows) -> Iterator[Record]:
    """Records with labels from a separate file, if there is one: PIQA, SocialIQA and alphaNLI have those of train.jsonl
    in train-labels.lst, one per line.

    Raises:
        DataError: the file does not have as many labels as there are rows, so that they would not match.
    """
    file = beside.labels(path)
    if not file.is_file():
        yield from records
        return
    labels = [line.strip() for _, line in read_lines(file)]
    while labels and not labels[-1]:
        labels.pop()
    count, told = 0, len(bad_rows.reasons)
    for index, record in numbered(records, bad_rows):
        if index < len(labels):
            yield replace(record, values={label_column(record.values): labels[index], **record.values})
        count, told = index + 1, len(bad_rows.reasons)
    count += len(bad_rows.reasons) - told  # those that were refused after the last one
    if count != len(labels):
        raise DataError(f"{file}: expected a label for each of the {count} rows of {path}, got {len(labels)}")
