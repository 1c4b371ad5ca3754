"""Streams documents from text files, with at most one document in memory; errors name the file and the line."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import DataError, InputError
from ..parquet_files import SUFFIXES as PARQUET
from ..text_files import binary_lines, check_text_file, opened, without_gz
from ..wording import counted
from .corpus_forms import lines_of_rows, plain_lines
from .corpus_rows import are_rows, json_rows, not_utf8, object_of, parquet_rows, text_of
from .sentences import segment_lines

_log = logging.getLogger("fastbert")

# Lines are read into memory whole, so a file without line ends must not be read as text.
MAX_LINE_BYTES = 16 << 20
# A longer run of lines without a blank line is cut into several documents, so that memory stays bounded.
MAX_DOCUMENT_CHARS = 4 << 20

# Tables of columns, which are not read: as text, their ids and labels would be text too.
_TABLES = (".csv", ".tsv")

# Lengths of lines that were broken to fit a page, and how many lines are looked at for them.
_WRAPPED, _LOOKED_AT = range(50, 91), 100

# What a file of markup begins with, in small letters.
_MARKUP = {b"<?xml ": "XML", b"<html": "HTML"}

# Updating a progress bar for every line would take longer than reading.
_REPORT_BYTES = 1 << 18

_TEXT_SUFFIXES = ("", ".txt", ".text", ".jsonl", *PARQUET)


@dataclass(frozen=True)
class Document:
    """A document: its name, for messages, and its sentences, none of them empty."""

    name: str
    sentences: list[str]


@dataclass(frozen=True)
class RawDocument:
    """A document before segmentation: stripped lines, none empty, each a sentence or a paragraph.

    ``part`` is the number of a piece of a document that was too long to be kept in memory whole.
    """

    name: str
    lines: list[str]
    part: int = 0


def read_documents(paths: Iterable[str | Path], errors: str = "strict") -> Iterator[Document]:
    """Reads the documents of text files one by one, split into sentences.

    Args:
        paths: files or directories (see `corpus_files`). Plain text has a sentence or a paragraph in each line and
            blank lines between documents, or one of the forms in `corpus_forms`. ``.jsonl`` (``.ndjson``) has an object
            with a string ``text``, which is a document, in each line; so may ``.json`` and files named as text. Both
            may be compressed as ``.gz``. ``.parquet`` has a column ``text``.
        errors: "strict" raises on bytes that are not UTF-8, "replace" puts U+FFFD in their place.

    Raises:
        DataError: there is no text; a file is binary, in UTF-16, or compressed but not named ``.gz``; it has invalid
            UTF-8, a line over 16 MiB or an invalid row (the message names file and line); or gzip data or a Parquet
            file are damaged.
        InputError: a path does not exist or is a table, or there is a Parquet file but no pyarrow.
    """
    for raw in read_raw_documents(paths, errors):
        yield Document(raw.name, segment_lines(raw.lines))


def read_raw_documents(
    paths: Iterable[str | Path], errors: str = "strict", on_bytes: Callable[[int], None] | None = None
) -> Iterator[RawDocument]:
    """As `read_documents`, but without segmentation into sentences. ``on_bytes`` is called with the number of bytes
    read since its last call."""
    if errors not in ("strict", "replace"):
        raise InputError(f"errors: expected 'strict' or 'replace', got {errors!r}")
    files = corpus_files(paths)
    empty = True
    for path in files:
        for document in _documents(path, errors, on_bytes):
            empty = False
            yield document
    if empty:
        raise DataError(f"{_some(files)}: expected text, got an empty corpus ({counted(len(files), 'file')})")


def told_if_wrapped(documents: Iterable[RawDocument]) -> Iterator[RawDocument]:
    """Yields the documents; warns if most of the first lines end within a sentence, since they were broken to fit a
    page, as in e-books."""
    lines = wrapped = 0
    for document in documents:
        if lines < _LOOKED_AT:
            for line, following in itertools.pairwise(document.lines[:_LOOKED_AT]):
                lines += 1
                wrapped += len(line) in _WRAPPED and line[-1] not in ".!?:;" and following[0].islower()
            if lines >= _LOOKED_AT and 2 * wrapped > lines:
                _log.warning(
                    "%s: most lines end within a sentence, as in e-books, and each would be one: expected a whole "
                    "sentence or paragraph in a line",
                    document.name,
                )
        yield document


def _documents(path: Path, errors: str, on_bytes: Callable[[int], None] | None) -> Iterator[RawDocument]:
    kind = kind_of(path)
    if kind in PARQUET:
        return _documents_of_rows(path, parquet_rows(path, errors, on_bytes))
    lines = _read_lines(path, errors, on_bytes)
    begins, lines = _looked_at(lines, 2)
    if kind == ".jsonl" or are_rows([line for _, line in begins if line]):
        return _documents_of_rows(path, json_rows(path, lines))
    return _documents_of_lines(path, plain_lines(lines))


_STANDARD_INPUT = Path("-")
_NAMED = "text in a file of another name is read if the file itself is named"


def corpus_files(paths: Iterable[str | Path], vocab: str | Path | None = None) -> list[Path]:
    """The files of a corpus: those that are named (``-`` is standard input) and, in directories, all .txt, .text,
    .jsonl and .ndjson files, also with .gz, .parquet files, files without a suffix, and .json files whose first line is
    a row as in .jsonl. A warning names the other files of directories, which are left out.

    Directories are searched recursively, each once even if there are links, and their files are sorted. A file that is
    found again, by the same path or another, is left out with a warning. Hidden files are ignored; pipes and devices
    are left out, and so are vocabularies: ``vocab``, and any vocab.txt with a tokenizer_config.json beside it, as in
    prepared data and models.

    Raises:
        DataError: a directory has no such file, or cannot be read.
        InputError: a path does not exist or is another .json file or a table, or there is no path.
    """
    paths = [paths] if isinstance(paths, (str, Path)) else list(paths)
    files = []
    for path in map(Path, paths):
        path = Path("/dev/stdin") if path == _STANDARD_INPUT else path
        if path.is_dir():
            files += _files_in(path, vocab)
        else:
            _check_named(path)
            files.append(path)
    if not files:
        raise InputError("corpus: expected at least one file or directory, got none")
    return _each_once(files)


def _each_once(files: list[Path]) -> list[Path]:
    """The files without those that are there already, as in a directory and in one inside it; warns of these."""
    kept, again, seen = [], [], set()
    for file in files:
        real = os.path.realpath(file) if file.is_file() else None  # a pipe or a device gives other text each time
        (again if real in seen else kept).append(file)
        if real is not None:
            seen.add(real)
    if again:
        count = counted(len(again), "file")
        _log.warning("corpus: %s left out (%s): given already, by the same path or another", count, _some(again))
    return kept


def _some(paths: Sequence[str | Path]) -> str:
    """The first of many paths, for a message."""
    return ", ".join(map(str, paths[:3])) + (", ..." if len(paths) > 3 else "")


def _files_in(directory: Path, vocab: str | Path | None) -> list[Path]:
    inside = list(_inside(directory))
    chosen = sorted(file for file in inside if _is_text(file, vocab))
    others = sorted(str(file.relative_to(directory)) for file in set(inside).difference(chosen))
    shown = _some(others)
    if not chosen:
        got = f"got none but {shown} ({_NAMED})" if others else "got none"
        raise DataError(f"{directory}: expected .txt, .jsonl, .gz or .parquet files in the directory, {got}")
    if others:
        count = counted(len(others), "file")
        _log.warning(
            "%s: %s left out (%s): neither .txt, .jsonl nor .parquet, or a vocabulary, a pipe or a device; %s",
            *(directory, count, shown, _NAMED),
        )
    return chosen


def _check_named(path: Path) -> None:
    """Raises InputError if a file that was named is not there, or its name says that it is not text."""
    if not path.exists():
        raise InputError(f"{path}: expected a text file or a directory, got nothing there")
    if kind_of(path) == ".json" and not _has_rows(path):
        raise InputError(f"{path}: expected text, or JSON with an object with a text a line, got other JSON")
    if kind_of(path) in _TABLES:
        raise InputError(
            f"{path}: expected text, got a table of columns by its name: "
            "pandas.read_csv(FILE).to_json(OUT, orient='records', lines=True) makes .jsonl of a .csv"
        )


def _inside(directory: Path) -> Iterator[Path]:
    seen = set()
    for root, folders, names in os.walk(directory, onerror=_refuse_directory, followlinks=True):
        real = os.path.realpath(root)
        if real in seen:  # a link to a parent directory would be followed for ever
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if name[0] != ".")
        yield from (Path(root, name) for name in names if name[0] != ".")


def _refuse_directory(error: OSError) -> None:
    raise DataError(f"{error.filename}: expected a directory that can be read, got: {error.strerror}") from error


def _is_text(file: Path, vocab: str | Path | None) -> bool:
    # Reading a pipe might wait for ever. A broken link counts as a file: an error is raised when it is read.
    regular = file.is_file() or not file.exists()
    kind = kind_of(file)
    is_corpus = kind in _TEXT_SUFFIXES or (kind == ".json" and regular and _has_rows(file))
    return regular and is_corpus and not _is_vocab(file, vocab)


def _is_vocab(file: Path, vocab: str | Path | None) -> bool:
    given = () if vocab is None else _files_of_vocab(Path(vocab))
    if file.exists() and any(path.exists() and file.samefile(path) for path in given):
        return True
    return file.name == "vocab.txt" and file.with_name("tokenizer_config.json").is_file()


def _files_of_vocab(vocab: Path) -> tuple[Path, ...]:
    """The files of a vocabulary whose names are those of text."""
    if vocab.is_dir():
        return vocab / "vocab.txt", vocab / "merges.txt"
    return (vocab, vocab.with_name("merges.txt")) if vocab.name == "vocab.json" else (vocab,)


def kind_of(path: Path) -> str:
    """The suffix that tells a file's format, without that of gzip."""
    suffix = Path(without_gz(path)).suffix.lower()
    return ".jsonl" if suffix == ".ndjson" else suffix


def _read_lines(path: Path, errors: str, on_bytes: Callable[[int], None] | None) -> Iterator[tuple[int, str]]:
    """Line numbers from 1, and the lines decoded and stripped."""
    unreported = 0
    with opened(path) as file:
        for number, line in enumerate(binary_lines(file, MAX_LINE_BYTES + 1), 1):
            yield number, _decode(path, number, line, errors)
            unreported += len(line)
            if on_bytes is not None and unreported >= _REPORT_BYTES:
                on_bytes(unreported)
                unreported = 0
    if on_bytes is not None:
        on_bytes(unreported)


def _decode(path: Path, number: int, line: bytes, errors: str) -> str:
    if number == 1:
        check_text_file(str(path), line)
    if len(line) > MAX_LINE_BYTES:
        raise DataError(f"{path}:{number}: expected lines of at most {MAX_LINE_BYTES} bytes, got a longer one")
    if b"\0" in line:
        raise DataError(f"{path}:{number}: expected UTF-8, got a NUL byte: a binary file, or text in UTF-16")
    if number == 1:
        line = line.removeprefix(b"\xef\xbb\xbf")
        markup = next((name for mark, name in _MARKUP.items() if line[:64].lstrip().lower().startswith(mark)), None)
        if markup is not None:
            raise DataError(f"{path}: expected text, got {markup}, whose text must be taken out of its tags")
    try:
        return line.decode("utf-8", errors).strip()
    except UnicodeDecodeError as error:
        raise not_utf8(f"{path}:{number}", error, "line") from None


def _looked_at(lines: Iterator[tuple[int, str]], count: int) -> tuple[list[tuple[int, str]], Iterator[tuple[int, str]]]:
    """The numbered lines up to the ``count``-th that is not blank, and all lines, these included."""
    begins = []
    for number, line in lines:
        begins.append((number, line))
        count -= bool(line)
        if not count:
            break
    return begins, itertools.chain(begins, lines)


def _has_rows(file: Path) -> bool:
    """Whether a .json file has rows; most .json files are configurations."""
    if not file.is_file():  # a pipe, which can be read only once, or a broken link: an error is raised when it is read
        return True
    with opened(file) as lines:
        line = next(binary_lines(lines, MAX_LINE_BYTES + 1), b"")
    row = object_of(line.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace").strip())
    return row is not None and text_of(row) is not None


def _documents_of_lines(path: Path, lines: Iterable[tuple[int, str]]) -> Iterator[RawDocument]:
    """Documents of lines, with blank lines between documents."""
    document: list[str] = []
    start = chars = part = 0
    for number, line in lines:
        if document and (not line or chars + len(line) > MAX_DOCUMENT_CHARS):
            yield RawDocument(f"{path}:{start}", document, part)
            document, chars, part = [], 0, part + 1
        if not line:
            part = 0
        else:
            if not document:
                start = number
            document.append(line)
            chars += len(line)
    if document:
        yield RawDocument(f"{path}:{start}", document, part)


def _documents_of_rows(path: Path, rows: Iterator[tuple[int, str]]) -> Iterator[RawDocument]:
    """Documents of numbered rows: each is one, unless the rows are the lines of WikiText's files."""
    lines, rows = lines_of_rows(rows)
    if lines is not None:
        yield from _documents_of_lines(path, lines)
        return
    for number, text in rows:
        document = [stripped for paragraph in text.split("\n") if (stripped := paragraph.strip())]
        if document:
            yield RawDocument(f"{path}:{number}", document)
