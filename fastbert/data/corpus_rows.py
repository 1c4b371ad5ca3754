"""The rows of JSON lines and Parquet files that hold texts, one in each."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import DataError
from ..parquet_files import opened_parquet
from .corpus_forms import WIKI_KEYS, unescaped

if TYPE_CHECKING:
    import pyarrow

# The fields of JSON and Parquet that hold the text: in nearly all corpora, in OSCAR since 22.01, in RedPajama 2.
_FIELDS = ("text", "content", "raw_content")
# How many rows of Parquet are in memory at a time.
_ROWS = 64


def not_utf8(where: str, error: UnicodeDecodeError, unit: str) -> DataError:
    """The error for bytes that are not UTF-8; ``unit`` is what ``where`` names."""
    return DataError(
        f"{where}: expected UTF-8, got byte 0x{error.object[error.start]:02x} at column {error.start + 1} of the {unit}"
        f" (fastbert prepare and vocab go on with --errors replace, Python with errors='replace')"
    )


def are_rows(lines: Sequence[str]) -> bool:
    """Whether a file that begins with these lines, two or the only one that are not blank, has JSON lines: an object
    with a text, or with something else in its place, or two objects. A single object of other fields may be a text.

    The name does not tell: WikiExtractor's files are called wiki_00 in either format, C4's JSON lines are called .json,
    and a pipe has no name.
    """
    rows = [object_of(line) for line in lines]
    first = rows[0] if rows else None
    return first is not None and (any(name in first for name in _FIELDS) or (len(rows) > 1 and rows[1] is not None))


def object_of(line: str) -> dict | None:
    """A line's JSON object."""
    if not line.startswith("{"):
        return None
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def text_of(row: dict) -> str | None:
    """The text of a row; None if it has none."""
    return next((row[name] for name in _FIELDS if isinstance(row.get(name), str)), None)


def _shown(row: dict) -> str:
    """The first names of a row without a text, for a message; those in `_FIELDS` with their types."""
    shown = [f"{name!r} ({type(row[name]).__name__})" if name in _FIELDS else repr(name) for name in sorted(row)[:5]]
    return f"[{', '.join(shown)}]"


def without_surrogates(text: str) -> str:
    """A text with question marks for lone surrogates: JSON and Python may have them in texts, but they are not text,
    and the tokenizer would fail."""
    return text.encode("utf-8", "replace").decode("utf-8")


def json_rows(path: Path, lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """The texts of numbered lines. Raises DataError for a line without one."""
    for number, line in lines:
        if not line:
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}:{number}: expected a JSON object, got a row that fails with: {error}") from None
        text = text_of(row) if isinstance(row, dict) else None
        if text is None:
            got = f"fields {_shown(row)}" if isinstance(row, dict) else type(row).__name__
            raise DataError(f"{path}:{number}: expected a JSON object with a string field 'text', got {got}")
        if row.keys() == WIKI_KEYS:
            text = unescaped(text)
        yield number, without_surrogates(text)


def parquet_rows(path: Path, errors: str, on_bytes: Callable[[int], None] | None) -> Iterator[tuple[int, str]]:
    """The numbered texts of a Parquet file; arguments as in `corpus.read_raw_documents`. Raises DataError for a row
    without one."""
    with opened_parquet(path) as file:
        import pyarrow

        column = _column_of_texts(path, file.schema_arrow)
        number = 0
        for batch in file.iter_batches(_ROWS, columns=[column]):
            for value in batch[0].cast(pyarrow.large_binary()):
                number += 1
                raw = value.as_py()
                if raw is None:
                    raise DataError(f"{path}:{number}: expected a text in the column {column!r}, got none")
                try:
                    yield number, raw.decode("utf-8", errors)
                except UnicodeDecodeError as error:
                    raise not_utf8(f"{path}:{number}", error, "text") from None
            if on_bytes is not None:
                on_bytes(batch.nbytes)


def _column_of_texts(path: Path, schema: pyarrow.Schema) -> str:
    """The first of `_FIELDS` that is a column of texts; columns of other types are passed over, as in JSON."""
    import pyarrow

    def has_texts(kind: pyarrow.DataType) -> bool:
        try:
            pyarrow.nulls(0, kind).cast(pyarrow.large_binary())
        except pyarrow.ArrowException:
            return False
        return True

    kinds = dict(zip(schema.names, schema.types, strict=True))
    column = next((name for name in _FIELDS if name in kinds and has_texts(kinds[name])), None)
    if column is None:
        got = ", ".join(f"{name} ({kind})" if name in _FIELDS else name for name, kind in kinds.items()) or "none"
        raise DataError(f"{path}: expected a column 'text' of texts, got {got:.200}")
    return column
