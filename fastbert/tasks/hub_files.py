"""Rows of the files that data-set hubs hand out: JSON lines, and Parquet, which most of them publish today."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..parquet_files import SUFFIXES as PARQUET
from ..parquet_files import opened_parquet
from ..text_files import opened, without_gz
from .bad_rows import STRICT, BadRows, called
from .files import check_text, load_json, read_json_lines, read_lines
from .tables import check_once

JSON_LINES = (".jsonl", ".ndjson", ".json")
BATCH = 1024
"""Rows of a Parquet file that are Python objects at a time."""


@dataclass(frozen=True)
class Record:
    """A row as its file has it.

    Args:
        where: the file and the line or row, for messages; both count from 1.
        values: by column, without those that are null.
        names: what the numbers of a column mean, where the file says so.
        nulls: the columns that are there and null in this row.
    """

    where: str
    values: dict[str, Any]
    names: dict[str, tuple[str, ...]] = field(default_factory=dict)
    nulls: tuple[str, ...] = ()

    @classmethod
    def of(cls, where: str, values: dict[str, Any], names: dict[str, tuple[str, ...]] | None = None) -> Record:
        """From all columns, null or not."""
        given = {key: value for key, value in values.items() if value is not None}
        return cls(where, given, names or {}, tuple(key for key in values if key not in given))


def is_hub_file(path: str | os.PathLike) -> bool:
    """Whether `read_records` reads a file, by its name."""
    return without_gz(path).lower().endswith(JSON_LINES) or os.fspath(path).lower().endswith(PARQUET)


def read_records(path: str | os.PathLike, bad_rows: BadRows = STRICT, places: Sequence[str] = ()) -> Iterator[Record]:
    """The rows of a file of JSON lines, of one JSON list or, by its name, of Parquet; those that are no rows go to
    ``bad_rows``.

    Args:
        places: what the values of a list are called that stands in a list in place of an object.

    Raises:
        DataError: a file that is no Parquet; or by bad_rows.
        InputError: Parquet without pyarrow.
    """
    if os.fspath(path).lower().endswith(PARQUET):
        yield from _parquet(path, bad_rows)
        return
    if _is_list(path):
        yield from list_records(path, load_json(path, bad_rows)[0], bad_rows, places)
    else:
        yield from line_records(path, read_lines(path, bad_rows), bad_rows)


def line_records(
    path: str | os.PathLike, lines: Iterable[tuple[int, str]], bad_rows: BadRows = STRICT
) -> Iterator[Record]:
    """The rows of lines of JSON with their numbers."""
    for number, values in read_json_lines(path, bad_rows, lines):
        yield Record.of(f"{called(path)}, line {number}", values)


def list_records(
    path: str | os.PathLike, values: list, bad_rows: BadRows = STRICT, places: Sequence[str] = ()
) -> Iterator[Record]:
    """The rows of a list of JSON, which count from 1; what is no object, and no list of `read_records`'s ``places``, is
    a bad row."""
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
    """The number of a class that a label is, also as the float that pandas makes of numbers with gaps, or as text; None
    for the name of a class, which may have digits, and for everything else.

    Args:
        names: of the column's classes, where the file has them.
    """
    text = str(int(value) if isinstance(value, bool) else value).strip()
    if isinstance(value, str) and text in names:
        return None
    whole = text.removesuffix(".0")
    return int(whole) if whole.isascii() and whole.isdigit() else None


def _is_list(path: str | os.PathLike) -> bool:
    """Whether a file of JSON is one list, as KLUE's are; a pipe, which can be read but once, is taken to have lines."""
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
    """Numbers of single precision as the shortest decimals that mean them: 3.8 would be 3.799999952316284."""
    import pyarrow

    return column.cast(pyarrow.string()) if column.type == pyarrow.float32() else column


def _names(schema: Any) -> dict[str, tuple[str, ...]]:
    """The names of classes by column, which the `datasets` library keeps in a file's metadata."""
    try:
        kept = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
        features = kept.get("info", {}).get("features", {})
        found = {column: _class_names(kind) for column, kind in features.items()}
    except (ValueError, AttributeError):
        return {}  # others may have written there what they like
    return {column: names for column, names in found.items() if names}


def _class_names(kind: Any) -> tuple[str, ...] | None:
    """Of a column of classes, or of lists of such."""
    if isinstance(kind, list) and kind:
        kind = kind[0]
    if not isinstance(kind, dict):
        return None
    names = kind.get("names")
    if names is None:
        return _class_names(kind.get("feature"))
    return tuple(map(str, names)) if isinstance(names, list) else None
