"""Reading the formats of data-set hubs: JSON lines, JSON lists, and Parquet, which most hubs publish today."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..parquet_files import SUFFIXES as PARQUET
from ..parquet_files import opened_parquet
from ..text_files import opened, without_gz
from .bad_rows import STRICT, BadRows, called
from .files import check_text, load_json, read_lines
from .tables import check_once

JSON_LINES = (".jsonl", ".ndjson", ".json")
NO_LABEL = ("-1", "-1.0")
"""What data-set hubs have in place of labels in test files."""
BATCH = 1024
"""How many rows of a Parquet file are converted to Python objects at a time."""
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


@dataclass(frozen=True)
class Record:
    """A row as in its file.

    Args:
        where: the file and the line or row, from 1, for messages.
        values: the values by column, without nulls.
        names: for columns of classes, the names of the class numbers, if the file has them.
        nulls: the columns that are null in this row.
    """

    where: str
    values: dict[str, Any]
    names: dict[str, tuple[str, ...]] = field(default_factory=dict)
    nulls: tuple[str, ...] = ()

    @classmethod
    def of(cls, where: str, values: dict[str, Any], names: dict[str, tuple[str, ...]] | None = None) -> Record:
        """Makes a record from all columns, including nulls."""
        given = {key: value for key, value in values.items() if value is not None}
        return cls(where, given, names or {}, tuple(key for key in values if key not in given))


def is_hub_file(path: str | os.PathLike) -> bool:
    """Whether `read_records` can read a file, by its name."""
    return without_gz(path).lower().endswith(JSON_LINES) or os.fspath(path).lower().endswith(PARQUET)


def read_records(path: str | os.PathLike, bad_rows: BadRows = STRICT, places: Sequence[str] = ()) -> Iterator[Record]:
    """The rows of a file of JSON lines, of one JSON list, or of Parquet (by its name).

    Args:
        path: the file.
        bad_rows: what to do with what is not a row.
        places: column names for rows that are lists instead of objects; only in a JSON list.

    Raises:
        DataError: the file is damaged or not in this format; or by bad_rows.
        InputError: the file is Parquet, and pyarrow is not installed.
    """
    if os.fspath(path).lower().endswith(PARQUET):
        yield from _parquet(path, bad_rows)
        return
    if _is_list(path):
        yield from json_list_records(path, load_json(path, bad_rows)[0], bad_rows, places)
    else:
        yield from json_line_records(path, read_lines(path, bad_rows), bad_rows)


def json_line_records(path: str | os.PathLike, lines: Iterable[tuple[int, str]], bad_rows: BadRows) -> Iterator[Record]:
    """The objects of JSON lines, which are given with their numbers; empty lines are skipped, and anything but an
    object is a bad row."""
    for number, line in lines:
        if not line.strip():
            continue
        where = f"{called(path)}, line {number}"
        try:
            row = json.loads(line)
            if _SURROGATE.search(line):
                check_text(json.dumps(row, ensure_ascii=False))
        except json.JSONDecodeError as error:
            bad_rows.refuse(f"{where}: expected a JSON object in one line, got an error in it: {error.msg}")
            continue
        except (ValueError, RecursionError) as error:
            bad_rows.refuse(f"{where}: expected a JSON object, got {error}")
            continue
        if not isinstance(row, dict):
            bad_rows.refuse(f"{where}: expected a JSON object, got {type(row).__name__}")
            continue
        yield Record.of(where, row)


def json_list_records(
    path: str | os.PathLike, values: list, bad_rows: BadRows, places: Sequence[str] = ()
) -> Iterator[Record]:
    """The rows of a JSON list, numbered from 1. Anything but an object, or a list of ``places`` (see `read_records`),
    is a bad row."""
    for number, value in enumerate(values, 1):
        if isinstance(value, list) and places and len(value) == len(places):
            value = dict(zip(places, value, strict=True))
        where = f"{called(path)}, object {number}"
        got = None if isinstance(value, dict) else type(value).__name__
        try:
            check_text(json.dumps(value, ensure_ascii=False))
        except ValueError as error:
            got = error
        if got is None:
            yield Record.of(where, value)
        else:
            bad_rows.refuse(f"{where}: expected a JSON object, got {got}")


def class_number(value: Any, names: Sequence[str] = ()) -> int | None:
    """The class number in a label: an integer, a bool, a string, or a float as pandas makes of integers if some are
    missing. None for the name of a class, even if that consists of digits, and for everything else.

    Args:
        value: the label.
        names: the names of the column's classes, if the file has them.
    """
    text = str(int(value) if isinstance(value, bool) else value).strip()
    if isinstance(value, str) and text in names:
        return None
    whole = text.removesuffix(".0")
    return int(whole) if whole.isascii() and whole.isdigit() else None


def _is_list(path: str | os.PathLike) -> bool:
    """Whether a JSON file is a single list, as in KLUE. A pipe is assumed to have lines, since it can only be read
    once."""
    if not os.path.isfile(path):
        return False
    with opened(path) as file:
        return file.read(1024).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"[")


def _parquet(path: str | os.PathLike, bad_rows: BadRows) -> Iterator[Record]:
    number = 0
    with opened_parquet(path) as file:
        names, header = _names(file.schema_arrow), file.schema_arrow.names
        check_once(header, header, os.fspath(path))
        for batch in file.iter_batches(BATCH):
            columns = [(name, _shortest(column)) for name, column in zip(batch.schema.names, batch, strict=True)]
            for index in range(len(batch)):
                number += 1
                where = f"{path}, row {number}"
                try:
                    values = {name: column[index].as_py() for name, column in columns}
                except UnicodeDecodeError as error:
                    got = f"0x{error.object[error.start]:02x} at byte {error.start + 1} of a text"
                    bad_rows.refuse(f"{where}: expected UTF-8, got {got}")
                    continue
                yield Record.of(where, values, names)


def _shortest(column: Any) -> Any:
    """Columns of float32 as the shortest decimal strings that round to them: 3.8 would become 3.799999952316284."""
    import pyarrow

    return column.cast(pyarrow.string()) if column.type == pyarrow.float32() else column


def _names(schema: Any) -> dict[str, tuple[str, ...]]:
    """The names of classes by column, which the `datasets` library keeps in a file's metadata."""
    try:
        kept = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
        features = kept.get("info", {}).get("features", {})
        found = {column: _class_names(kind) for column, kind in features.items()}
    except (ValueError, AttributeError, RecursionError):
        return {}  # other software may have written something else there
    return {column: names for column, names in found.items() if names}


def _class_names(kind: Any) -> tuple[str, ...] | None:
    """The class names of a column of classes, or of lists of classes; None for other columns."""
    if isinstance(kind, list) and kind:
        kind = kind[0]
    if not isinstance(kind, dict):
        return None
    names = kind.get("names")
    if names is None:
        return _class_names(kind.get("feature"))
    return tuple(map(str, names)) if isinstance(names, list) else None
