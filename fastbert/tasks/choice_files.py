"""Multiple-choice files that are neither JSON nor tables with a header: COPA's XML, MMLU's .csv, directories."""

from __future__ import annotations

import itertools
import os
import xml.etree.ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import DataError
from .bad_rows import called
from .choice_forms import LETTERS
from .csv_records import csv_records
from .hub_files import Record

SUFFIXES = (".txt", ".csv")
"""The suffixes of the files in RACE's and MMLU's directories."""
_PARTS = frozenset(["train", "auxiliary_train", "dev", "val", "test"])
_MMLU = ("1", "2", "3", "4", "5", "6")


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
    first: tuple[int, str], lines: Iterator[tuple[int, str]]
) -> Iterator[tuple[int, dict[str, str] | None]] | None:
    """The rows of a .csv without a header and the numbers of their lines, if the first is a row of MMLU: a question,
    four answers, and the letter of the right one. None for any other file.

    Args:
        first, lines: the file's first line and the following ones, with their numbers.
    """
    found = csv_records(itertools.chain([(first[0] - 1, ""), first], lines), None)
    row = next(found, (0, {}))
    is_row = set(row[1] or ()) == set(_MMLU) and row[1]["6"] in tuple(LETTERS[:4])
    return itertools.chain([row], found) if is_row else None


def of_mmlu(fields: dict[str, str]) -> dict[str, Any]:
    """A row of `mmlu_records` with the names that hubs use. Raises ValueError for one with other columns."""
    if set(fields) != set(_MMLU):
        raise ValueError("expected MMLU's six columns (question, four answers, letter), with closed quotes, got others")
    question, *choices, answer = (fields[name] for name in _MMLU)
    return {"question": question, "choices": choices, "answer": answer}
