"""Files of other people's: lines, texts in UTF-8, YAML, JSON and Python, which may hold anything."""

from __future__ import annotations

import ast
import contextlib
import gzip
import json
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from .errors import DataError, FastbertError, InputError

# A file that claims to be a model's settings may be of any size.
_MAX_JSON_BYTES = 64 << 20
_JSON_KINDS = {dict: "object", list: "array"}


def without_gz(path: str | os.PathLike) -> str:
    """A file's path without the .gz at its end: what is left says what is in it."""
    path = os.fspath(path)
    return path[:-3] if path.lower().endswith(".gz") else path


@contextlib.contextmanager
def opened(path: str | os.PathLike) -> Iterator[IO[bytes]]:
    """Opens a file to read its bytes, those of one called .gz unpacked.

    Raises:
        DataError: what gzip compressed is damaged or not whole.
    """
    packed = without_gz(path) != os.fspath(path)
    with gzip.open(path, "rb") if packed else open(path, "rb") as file:
        try:
            yield file
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise DataError(f"{path}: expected a whole gzip file, got a damaged one ({error})") from None


def binary_lines(file: IO[bytes], limit: int = -1) -> Iterator[bytes]:
    """Lines of a file with their ends, line feeds; where there is none, or one at the end of all, carriage returns,
    which Macs wrote once and spreadsheets' "CSV (Macintosh)" has today. In other files a carriage return is text.

    Args:
        limit: of what is read at a time, so that a longer line comes in parts; -1 for none.
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


# What a file begins with that is no text in UTF-8, in their order: UTF-32's mark begins with UTF-16's.
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
    b"<mediawiki ": "a dump of MediaWiki's pages; WikiExtractor makes text of it",
}


def check_text_file(name: str, begins: bytes, raises: type[FastbertError] = DataError) -> None:
    """Raises an error of that kind where the first bytes of a file say that it is no text, or none in UTF-8."""
    found = next((what for mark, what in _FORMATS.items() if begins.startswith(mark)), None)
    if found is not None:
        raise raises(f"{name}: expected text in UTF-8, got {found}")


def decode_text(
    raw: bytes, name: str, raises: type[FastbertError] = InputError, decode: Callable[[bytes], str] = bytes.decode
) -> str:
    """The text of a whole file in UTF-8, without a byte-order mark; raises an error of that kind for another one.

    Args:
        decode: takes the bytes, where others than UTF-8 may be text too; raises UnicodeDecodeError.
    """
    check_text_file(name, raw, raises)
    try:
        return decode(raw).removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise raises(f"{name}, line {line}: expected UTF-8, got 0x{raw[error.start]:02x}") from None


def read_yaml(path: str | os.PathLike) -> dict:
    """The mapping in a YAML file (UTF-8); empty for an empty file.

    A key that stands twice is refused: YAML forbids it, and its readers keep the last one without a word. So are two
    that are one to Python, as 1 and 1.0.

    Raises:
        InputError: there is no such file, or it is no YAML or no mapping.
    """
    import yaml

    class Loader(yaml.SafeLoader):
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

    try:
        value = Loader(decode_text(Path(path).read_bytes(), str(path))).get_single_data()
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
        raise InputError(f"{path}: expected values that end, got one that holds itself (an alias below its own anchor)")
    return value or {}


def _yaml_reason(error: Exception) -> str:
    """What a reader of YAML found wrong, with its lines."""
    found = ((getattr(error, name, None), getattr(error, f"{name}_mark", None)) for name in ("context", "problem"))
    said = [text if mark is None else f"{text} in line {mark.line + 1}" for text, mark in found if text]
    return ", ".join(said) or " ".join(str(error).split())


def _holds_itself(value: Any, above: tuple = (), ended: set[int] | None = None) -> bool:
    """Whether a value of lists and mappings has one of them within itself, as YAML can say it."""
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
    """A JSON file (UTF-8) of somebody else's, whole, as the ``kind`` of value that it must hold.

    Args:
        kind: dict or list.
        raises: the error of the caller's own.

    Raises:
        FastbertError: of the kind ``raises``: the file cannot be read, is too long, is no JSON or holds another kind.
    """
    try:
        size = os.stat(path).st_size
        if size > _MAX_JSON_BYTES:
            raise raises(f"{path}: expected at most {_MAX_JSON_BYTES} bytes of JSON, got {size}")
        value = json.loads(decode_text(Path(path).read_bytes(), str(path), raises))
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, FastbertError):
            raise
        raise raises(f"{path}: expected JSON, got something that cannot be read: {error}") from error
    if not isinstance(value, kind):
        raise raises(f"{path}: expected a JSON {_JSON_KINDS[kind]}, got {type(value).__name__}")
    return value


def parse_python(source: str | bytes) -> ast.Module:
    """The syntax tree of Python's source, with its docstrings; under ``python -OO`` ast.parse drops them from 3.14 on.

    Raises:
        SyntaxError, ValueError: as ast.parse.
    """
    return compile(source, "<unknown>", "exec", ast.PyCF_ONLY_AST, dont_inherit=True, optimize=0)
