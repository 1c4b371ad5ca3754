"""Reading task files with their line numbers."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from ..errors import DataError, InputError
from ..text_files import binary_lines, check_text_file, decode_text, opened
from .bad_rows import STRICT, BadRows, called


def read_lines(path: str | os.PathLike, bad_rows: BadRows = STRICT) -> Iterator[tuple[int, str]]:
    """The lines of a UTF-8 file with their numbers from 1, without byte-order mark and line end (LF, CRLF, or CR
    alone).

    Other characters that Unicode counts as line ends, such as U+2028 and U+0085, are text; they occur in real data.

    Args:
        path: the file, which is unpacked if its name ends in .gz; ``-`` for standard input.
        bad_rows: what to do with lines that are neither UTF-8 nor in its ``encoding``, or contain a NUL byte (a binary
            file, or UTF-16).

    Raises:
        DataError: the text is UTF-16, or the file is compressed but not called so, or damaged; or by bad_rows.
        InputError: the path is a directory.
    """
    if os.fspath(path) == "-":
        yield from _decode_lines(sys.stdin.buffer, called(path), bad_rows)
        return
    if Path(path).is_dir():
        raise InputError(f"{path} is a directory, expected a file")
    with opened(path) as file:
        yield from _decode_lines(file, str(path), bad_rows)


def _decode_lines(file: IO[bytes], name: str, bad_rows: BadRows) -> Iterator[tuple[int, str]]:
    for number, raw in enumerate(binary_lines(file), 1):
        raw = raw.removesuffix(b"\n").removesuffix(b"\r")
        if number == 1:
            check_text_file(name, raw)
            raw = raw.removeprefix(b"\xef\xbb\xbf")
        if b"\0" in raw:
            got = "a NUL byte: a binary file, or text in UTF-16"
            bad_rows.refuse(f"{name}, line {number}: expected UTF-8, got {got}")
            continue
        try:
            text = bad_rows.decode(raw)
        except UnicodeDecodeError as error:
            # Not latin-1: there, Windows' quotes and dashes are control characters, which tokenizers drop.
            hint = "iconv -f windows-1252 -t utf-8 converts Windows' and Latin-1's Western text"
            if bad_rows.hint and bad_rows.encoding is None:  # commands that set a hint have this option
                hint += ", --fallback-encoding windows-1252 reads it"
            expected = "UTF-8" if bad_rows.encoding is None else f"UTF-8 or {bad_rows.encoding}"
            got = f"0x{raw[error.start]:02x} at byte {error.start + 1}; {hint}"
            bad_rows.refuse(f"{name}, line {number}: expected {expected}, got {got}")
            continue
        yield number, text


def load_json(path: str | os.PathLike, bad_rows: BadRows = STRICT) -> tuple[Any, str]:
    """The value of a JSON file, and its text.

    Args:
        path: the file, with or without a byte-order mark; ``-`` for standard input.
        bad_rows: its ``encoding`` is that of a file that is not UTF-8; nothing is skipped.

    Raises:
        DataError: the file cannot be decoded, or is not JSON.
        InputError: the path is a directory.
    """
    if Path(path).is_dir():
        raise InputError(f"{path} is a directory, expected a file")
    with contextlib.nullcontext(sys.stdin.buffer) if os.fspath(path) == "-" else opened(path) as file:
        text = decode_text(file.read(), called(path), DataError, bad_rows.decode)
    return parse_json(text, path), text


def parse_json(text: str, path: str | os.PathLike) -> Any:
    """The value of the JSON text of a whole file. Raises DataError, with the line if it is known."""
    if not text.strip():
        raise DataError(f"{called(path)}: expected JSON, got an empty file")
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        lines = "; JSON lines are read from a file called .jsonl" if error.msg == "Extra data" else ""
        raise DataError(
            f"{called(path)}, line {error.lineno}: expected JSON, got an error in it: {error.msg}{lines}"
        ) from None
    except (ValueError, RecursionError) as error:  # thousands of digits, or of brackets in brackets
        raise DataError(f"{called(path)}: expected JSON, got an error in it: {error}") from None


def check_text(text: str) -> None:
    """Raises ValueError for a lone surrogate, which JSON can contain, but which is not valid Unicode text."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"a text with the lone surrogate {text[error.start]!r}") from None


def shorten(text: str, width: int = 60) -> str:
    """The beginning of a text, for an error message."""
    return text if len(text) <= width else text[: width - 3] + "..."


def of_rows(found: Mapping[str, Any], rows: Sequence, path: str | os.PathLike, bad_rows: BadRows = STRICT) -> list:
    """Predictions from a file in the order of the rows.

    Args:
        found: the predictions by the id of their row.
        rows: the rows.
        path: the file, for messages.
        bad_rows: if it has skipped rows, predictions for unknown rows are ignored.

    Raises:
        DataError: two rows have the same id; a row has no prediction; a prediction has no row.
    """
    known = Counter(row.id for row in rows)
    twice = next((name for name, count in known.items() if count > 1), None)
    if twice is not None:
        raise DataError(
            f"{path}: expected every row's id once, since predictions are matched by id, got {shorten(twice)} twice"
        )
    missing = [row.id for row in rows if row.id not in found]
    unknown = [] if bad_rows.reasons else [name for name in found if name not in known]
    if missing or unknown:
        raise DataError(
            f"{path}: expected one prediction for each of {len(rows)} rows, got {len(found)}; "
            f"missing {shorten(', '.join(missing)) or 'none'}; unknown {shorten(', '.join(unknown)) or 'none'}"
        )
    return [found[row.id] for row in rows]
