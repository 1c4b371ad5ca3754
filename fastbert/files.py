"""Files that appear whole or not at all, and what they hold."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from .errors import DataError, FastbertError, InputError

# A file that claims to be a model's settings may be of any size.
_MAX_JSON_BYTES = 64 << 20
_JSON_KINDS = {dict: "object", list: "array"}

_YOUNG_SECONDS = 60.0

STANDARD_OUTPUT = ("-", "/dev/stdout")
"""Where a file or a directory would be made, one of the first name, or in place of the second, which is a link."""


@contextlib.contextmanager
def whole(path: str | os.PathLike) -> Iterator[Path]:
    """Gives a free name beside ``path``, with its suffix, to write a file under.

    When the block ends the file is forced to the disk and takes its name; when it fails nothing is left, and what was
    there before stays. Directories above are made, and removed again when it fails.

    What exists and is no regular file, a pipe or a device, is given itself: another one must not take its place.

    Raises:
        OSError: the file cannot be written; of ``path``, since nobody knows the other name.
    """
    path = Path(path)
    if path.exists() and not path.is_file():
        with _errors_of(path, path):
            yield path
        return
    made = [parent for parent in path.parents if not parent.exists()]
    temporary = path.with_name(f".tmp-{uuid.uuid4().hex[:12]}-{path.name}")
    try:
        with _errors_of(path, temporary):
            _make_directory(path.parent)
            yield temporary
            flush(temporary)
            os.replace(temporary, path)
        made = []
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        for directory in made:
            with contextlib.suppress(OSError):  # not empty: something else was put into it
                directory.rmdir()


@contextlib.contextmanager
def _errors_of(path: Path, written: Path) -> Iterator[None]:
    """Makes the system's errors of the file that is written, or of none, those of ``path``."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename in (None, written, str(written)):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def _make_directory(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), error.filename) from error


def write_whole(path: str | os.PathLike, content: str | bytes, raises: type[FastbertError] | None = None) -> None:
    """Writes a file whole or not at all, a text in UTF-8.

    Args:
        raises: the error of the caller's own; None for that of the system.

    Raises:
        FastbertError: of the kind ``raises``: the file cannot be written.
        OSError: the same without it, as `whole` raises it.
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    try:
        with whole(path) as temporary:
            temporary.write_bytes(data)
    except OSError as error:
        if raises is None:
            raise
        raise raises(f"{path}: expected to write {len(data)} bytes, got: {error.strerror or error}") from error


def put_in_place(finished: Path, path: Path, aside: Path) -> None:
    """Renames a finished directory to the name that it is to have. What has that name stands under ``aside`` from then
    on, for the caller to remove, and is back where the new one cannot take its place.

    Raises:
        OSError: one of the renames fails.
    """
    if not path.exists():
        os.rename(finished, path)
        return
    os.rename(path, aside)
    try:
        os.rename(finished, path)
    except OSError:
        os.rename(aside, path)
        raise


@contextlib.contextmanager
def held(directory: str | os.PathLike) -> Iterator[bool]:
    """Locks a directory of unfinished work, and the system lets go of it when the process ends in any way.

    False where another process holds it, or where the file system knows no locks: there leftovers stay.
    """
    import fcntl  # of Unix alone, which nothing else here needs

    descriptor = os.open(directory, os.O_RDONLY)
    try:
        free = True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            free = False
        yield free
    finally:
        os.close(descriptor)


def remove_leftovers(parent: Path, pattern: str) -> None:
    """Removes directories that killed processes left: those of a pattern that no process holds by `held`."""
    for left in parent.glob(pattern):
        with contextlib.suppress(OSError), held(left) as free:
            # One that is a moment old may be about to be held.
            if free and time.time() - left.stat().st_mtime > _YOUNG_SECONDS:
                shutil.rmtree(left, ignore_errors=True)


def check_new(directory: str | os.PathLike) -> None:
    """Raises InputError where a directory that is to be made would mix with what is there."""
    directory = Path(directory)
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise InputError(f"{directory} already exists and is not empty: choose another directory, or remove it")


def check_run_name(directory: str | os.PathLike) -> None:
    """Raises InputError for a run directory called as standard output is, or by a name that is not UTF-8, which
    TensorBoard, whose files each run has, would refuse only after others are written."""
    if os.fspath(directory) in STANDARD_OUTPUT:
        raise InputError(f"expected a run directory, got {os.fspath(directory)}, which is the name of standard output")
    try:
        os.fspath(directory).encode("utf-8")
    except UnicodeEncodeError:
        raise InputError(f"expected a run directory with a name in UTF-8, got {os.fspath(directory)!r:.200}") from None


def download_hint(path: str | os.PathLike) -> str:
    """The end of an error's sentence where the model named is not on this machine: a hub's name, most likely."""
    if Path(path).exists():
        return ""
    return "; models are not downloaded: `hf download NAME --local-dir DIR` fetches one from the hub, then give DIR"


def run_hint(directory: str | os.PathLike) -> str:
    """The end of an error's sentence where a run's directory was named in place of its model's."""
    model = Path(directory) / "model"
    return f"; the model of this run is {model}" if (model / "config.json").is_file() else ""


def adapter_hint(directory: str | os.PathLike) -> str:
    """The end of an error's sentence where a directory holds a PEFT adapter, weights that belong to another model."""
    if not (Path(directory) / "adapter_config.json").is_file():
        return ""
    return (
        "; it holds a PEFT adapter: load it onto its model with peft, and save what `merge_and_unload()` gives with "
        "`save_pretrained`"
    )


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
    b"PAR1": "Parquet; pandas.read_parquet(FILE).to_json(OUT, orient='records', lines=True) makes .jsonl of it",
    b"<mediawiki ": "a dump of MediaWiki's pages; WikiExtractor makes text of it",
}


def check_text_file(name: str, begins: bytes, raises: type[FastbertError] = DataError) -> None:
    """Raises an error of that kind where the first bytes of a file say that it is no text, or none in UTF-8."""
    found = next((what for mark, what in _FORMATS.items() if begins.startswith(mark)), None)
    if found is not None:
        raise raises(f"{name}: expected text in UTF-8, got {found}")


def decode_text(raw: bytes, name: str, raises: type[FastbertError] = InputError) -> str:
    """The text of a whole file in UTF-8, without a byte-order mark; raises an error of that kind for another one."""
    check_text_file(name, raw, raises)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise raises(f"{name}, line {line}: expected UTF-8, got 0x{raw[error.start]:02x}") from None


def flush(path: str | os.PathLike) -> None:
    """Forces a file or the entries of a directory to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256(path: str | os.PathLike) -> str:
    """The SHA-256 of a file's content, in hexadecimal. Python's lock is free meanwhile."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:  # hashlib.file_digest is newer than the oldest Python that is served
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


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
