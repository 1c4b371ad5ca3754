"""Reads files from outside, which may contain anything: lines, text in UTF-8, YAML, JSON and Python source."""

from __future__ import annotations

import ast
import contextlib
import functools
import gzip
import json
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from .errors import DataError, FastbertError, InputError

# A file that is said to be a model's configuration may be of any size.
_MAX_JSON_BYTES = 64 << 20
_JSON_KINDS = {dict: "object", list: "array"}


def without_gz(path: str | os.PathLike) -> str:
    """A file's path without a final .gz: the suffix before it tells the format."""
    path = os.fspath(path)
    return path[:-3] if path.lower().endswith(".gz") else path


@contextlib.contextmanager
def opened(path: str | os.PathLike) -> Iterator[IO[bytes]]:
    """Opens a file to read its bytes; a .gz file is decompressed.

    Raises:
        DataError: the compressed data are damaged or truncated.
    """
    packed = without_gz(path) != os.fspath(path)
    with gzip.open(path, "rb") if packed else open(path, "rb") as file:
        try:
            yield file
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise DataError(f"{path}: expected a whole gzip file, got a damaged one ({error})") from None


def binary_lines(file: IO[bytes], limit: int = -1) -> Iterator[bytes]:
    """Yields the lines of a file with their line ends.

    Lines end in a line feed. In a file without one, or with only one at its end, they end in a carriage return, as
    old Macs wrote them and spreadsheets' "CSV (Macintosh)" still does. In other files a carriage return is text.

    Args:
        file: the file, open for reading.
        limit: how many bytes are read at a time at most, so that a longer line comes in parts; -1 for no limit.
    """
    line = file.readline(limit)
    returns = b"\r" in line.removesuffix(b"\r\n")
    following = file.readline(limit) if returns and line.endswith(b"\n") else b""
    if not returns or following:
        while line:
            yield line
            line, following = following or file.readline(limit), b""
        return
    rest = b""
    while line:
        *whole, rest = (rest + line).split(b"\r")
        yield from (part + b"\n" for part in whole)
        if 0 < limit <= len(rest):
            yield rest
            rest = b""
        line = file.readline(limit)
    if rest.removesuffix(b"\n"):
        yield rest


# The first bytes of files that are not text in UTF-8. The order matters: UTF-32's mark begins with UTF-16's.
_FORMATS = {
    b"\xff\xfe\0\0": "UTF-32; iconv -f utf-32 -t utf-8 converts it",
    b"\xff\xfe": "UTF-16, as PowerShell's > writes it; iconv -f utf-16 -t utf-8 converts it",
    b"\xfe\xff": "UTF-16; iconv -f utf-16 -t utf-8 converts it",
    b"\x1f\x8b": "a file that gzip compressed; gunzip -c unpacks it",
    b"BZh91AY&SY": "a file that bzip2 compressed; bunzip2 -c unpacks it",
    b"\xfd7zXZ\0": "a file that xz compressed; unxz -c unpacks it",
    b"\x28\xb5\x2f\xfd": "a file that zstd compressed; unzstd -c unpacks it",
    b"PK\x03\x04": "a zip archive, or a spreadsheet; unpack it, or save it as text",
    b"\xff\xff\xff\xff": "Arrow, as datasets' save_to_disk writes it; load_from_disk(DIR).to_parquet(OUT) converts it",
    b"PAR1": "Parquet; pandas.read_parquet(FILE).to_json(OUT, orient='records', lines=True) makes .jsonl of it",
    b"version https://git-lfs.github.com": "a pointer of Git LFS to the file: run `git lfs pull` there",
    b"<mediawiki ": "a dump of MediaWiki's pages; WikiExtractor makes text of it",
    b"WARC/": "a web archive (WARC, WET) with headers between its texts; warcio's ArchiveIterator takes the texts out",
    b"%PDF-": "a PDF; pdftotext makes text of it",
    b"<!doctype html": "HTML, whose text must be taken out of its tags",
}


def check_text_file(name: str, begins: bytes, raises: type[FastbertError] = DataError) -> None:
    """Raises an error if the first bytes of a file show that it is not text in UTF-8.

    Args:
        name: the file's, for the message.
        begins: its first bytes.
        raises: the class of the error.
    """
    begins = begins[:64].removeprefix(b"\xef\xbb\xbf")
    if begins.lstrip()[:1] == b"<":  # markup, in which small and capital letters and blanks before it are the same
        begins = begins.lstrip().lower()
    found = next((what for mark, what in _FORMATS.items() if begins.startswith(mark)), None)
    if found is not None:
        raise raises(f"{name}: expected text in UTF-8, got {found}")


def decode_text(
    raw: bytes, name: str, raises: type[FastbertError] = InputError, decode: Callable[[bytes], str] = bytes.decode
) -> str:
    """Decodes a whole file's bytes from UTF-8 and removes a byte-order mark.

    Args:
        raw: the file's bytes.
        name: the file's, for the message.
        raises: the class of the error for a file that is not text in UTF-8.
        decode: another decoder of the bytes, for files that may hold other encodings; raises UnicodeDecodeError.
    """
    check_text_file(name, raw, raises)
    try:
        return decode(raw).removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise raises(f"{name}, line {line}: expected UTF-8, got 0x{raw[error.start]:02x}") from None


def read_yaml(path: str | os.PathLike) -> dict:
    """Reads the mapping in a YAML file (UTF-8); empty for an empty file.

    Duplicate keys are refused: YAML forbids them, but its readers silently keep the last one. Keys that are equal in
    Python, such as 1 and 1.0, count as duplicates.

    Raises:
        InputError: there is no such file, or it is not YAML or not a mapping.
    """
    import yaml

    try:
        value = _strict_loader()(decode_text(Path(path).read_bytes(), str(path))).get_single_data()
    except FileNotFoundError:
        raise InputError(f"{path}: expected a YAML file, found none") from None
    except IsADirectoryError:
        own = Path(path) / "config.yaml"
        hint = f"; the options of this run are in {own}" if own.is_file() else ""
        raise InputError(f"{path}: expected a YAML file, got a directory{hint}") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise InputError(f"{path}: expected YAML, got {_yaml_reason(error)}") from error
    if value is not None and not isinstance(value, dict):
        raise InputError(f"{path}: expected a mapping, got {type(value).__name__}")
    if _holds_itself(value):
        raise InputError(f"{path}: expected finite values, got one that contains itself (an alias under its anchor)")
    return value or {}


@functools.cache
def _strict_loader() -> type:
    """A class like yaml.SafeLoader that refuses a key that a mapping has twice."""
    import yaml

    class StrictLoader(yaml.SafeLoader):
        def construct_mapping(self, node, deep=False):
            texts, values = set(), {}
            for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
                value = key.value if key.tag == "tag:yaml.org,2002:merge" else self.construct_object(key)
                before = key.value if key.value in texts else values.get(value)
                if before is not None:
                    said = f"the key {key.value!r}" + (" twice" if before == key.value else f", the same as {before!r}")
                    raise yaml.constructor.ConstructorError(None, None, said, key.start_mark)
                texts.add(key.value)
                values[value] = key.value
            return super().construct_mapping(node, deep)

    return StrictLoader


def _yaml_reason(error: Exception) -> str:
    """The reason that the YAML reader gives, with line numbers."""
    found = ((getattr(error, name, None), getattr(error, f"{name}_mark", None)) for name in ("context", "problem"))
    said = [text if mark is None else f"{text} in line {mark.line + 1}" for text, mark in found if text]
    return ", ".join(said) or " ".join(str(error).split())


def _holds_itself(value: Any, above: tuple = (), ended: set[int] | None = None) -> bool:
    """Whether a list or mapping contains itself, which YAML's aliases make possible."""
    ended = set() if ended is None else ended
    if not isinstance(value, dict | list) or id(value) in ended:  # aliases of aliases are looked into once
        return False
    inner = value.values() if isinstance(value, dict) else value
    if any(value is outer for outer in above) or any(_holds_itself(each, (*above, value), ended) for each in inner):
        return True
    ended.add(id(value))
    return False


def read_json(
    path: str | os.PathLike,
    kind: type = dict,
    raises: type[FastbertError] = InputError,
) -> Any:
    """Reads a JSON file (UTF-8) from outside.

    Args:
        path: the file.
        kind: the type that its value must have, dict or list.
        raises: the class of the error.

    Raises:
        FastbertError: of the class ``raises``: the file cannot be read, is too long, is not JSON or holds another type.
    """
    try:
        size = os.stat(path).st_size
        if size > _MAX_JSON_BYTES:
            raise raises(f"{path}: expected at most {_MAX_JSON_BYTES} bytes of JSON, got {size}")
        text = decode_text(Path(path).read_bytes(), str(path), raises)
        if not text.strip():
            raise raises(f"{path}: expected JSON, got an empty file")
        value = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, FastbertError):
            raise
        raise raises(f"{path}: expected JSON, got something that cannot be read: {error}") from error
    if not isinstance(value, kind):
        raise raises(f"{path}: expected a JSON {_JSON_KINDS[kind]}, got {type(value).__name__}")
    return value


def parse_python(source: str | bytes) -> ast.Module:
    """The syntax tree of Python source with its docstrings, which `ast.parse` drops under ``python -OO`` since Python
    3.14.

    Raises:
        SyntaxError, ValueError: as ast.parse.
    """
    return compile(source, "<unknown>", "exec", ast.PyCF_ONLY_AST, dont_inherit=True, optimize=0)
