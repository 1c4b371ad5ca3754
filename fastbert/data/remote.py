"""Prepared data on any file system that fsspec knows: ``s3://``, ``gs://``, ``hf://``, ``memory://``, ...

The manifest, the tokenizer and the indices are fetched when the data are opened; a shard of tokens is fetched whole
when it is first needed, and checked against its SHA-256. Fetched files are kept in a cache directory, in which the size
of all shards stays within a limit: the least recently used are removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ..errors import DataError, InputError
from ..files import unfinished, write_whole
from .manifest import FILE_NAME, Manifest, check_file
from .token_file import mapped

_MAX_MANIFEST_BYTES = 256 << 20
_BLOCK = 4 << 20
# The digits of a manifest's SHA-256 that name its directory in a cache.
_NAME_LENGTH = 16


def is_remote(path: str | os.PathLike) -> bool:
    """Whether this is an address for fsspec and not a path."""
    return isinstance(path, str) and "://" in path


def _default_cache() -> Path:
    """$FASTBERT_CACHE, or ~/.cache/fastbert if it is not set or empty."""
    return Path(os.environ.get("FASTBERT_CACHE") or Path.home() / ".cache" / "fastbert")


class RemoteFiles:
    """The files of a remote directory of prepared data, and the local copies of those that were fetched.

    Args:
        url: the directory's address.
        cache: the cache directory, which has a directory for each manifest; None for the default one.
        limit: the most bytes of token shards in the cache.

    Raises:
        InputError: there is no such file system, or it cannot be used here.
        DataError: there is no manifest, or it is not valid.
    """

    def __init__(self, url: str, cache: Path | None = None, limit: int = 1 << 40) -> None:
        self.url, self.limit = url.rstrip("/"), limit
        self.cache = _default_cache() if cache is None else Path(cache)
        self._system, self._root = _file_system(self.url)
        content = self._read_manifest()
        self.directory = self.cache / hashlib.sha256(content).hexdigest()[:_NAME_LENGTH]
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.directory / FILE_NAME
        if not path.is_file() or path.read_bytes() != content:
            write_whole(path, content, DataError)
        self.manifest = Manifest.load(self.directory)
        # All indices together are less than a tenth of the tokens.
        for name in self.manifest.files:
            if not name.endswith(".bin"):
                self.fetch(name)

    def _read_manifest(self) -> bytes:
        try:
            with self._system.open(f"{self._root}/{FILE_NAME}", "rb") as file:
                content = file.read(_MAX_MANIFEST_BYTES + 1)
        except Exception as error:  # every file system raises its own errors
            raise DataError(
                f"{self.url}/{FILE_NAME}: expected the manifest of prepared data, got: {_said(error)}"
            ) from error
        if len(content) > _MAX_MANIFEST_BYTES:
            raise DataError(f"{self.url}/{FILE_NAME}: expected at most {_MAX_MANIFEST_BYTES} bytes, got more")
        return content

    def fetch(self, name: str) -> Path:
        """The path of the local copy of a file, which is fetched if needed, with a second attempt if bytes are wrong.

        Raises:
            DataError: the file does not exist, cannot be written here, differs from the manifest, or is larger than the
                cache's limit.
        """
        path, entry = self.directory / name, self.manifest.files[name]
        with contextlib.suppress(DataError):
            check_file(self.directory, name, entry)
            with contextlib.suppress(OSError):
                os.utime(path)  # the least recently used shard is removed first
            return path
        if name.endswith(".bin"):
            self._make_room(entry["bytes"], name)
        path.parent.mkdir(parents=True, exist_ok=True)
        problem = self._bring(name, path, entry) and self._bring(name, path, entry)
        if problem is not None:
            raise DataError(f"{self.url}/{name}: {problem}")
        return path

    def _bring(self, name: str, path: Path, entry: dict) -> str | None:
        """Copies and checks a file. Returns what was wrong, or None."""
        digest, size = hashlib.sha256(), 0
        with unfinished(path) as temporary:
            try:
                with self._system.open(f"{self._root}/{name}", "rb") as source, open(temporary, "wb") as target:
                    while block := source.read(_BLOCK):
                        size += len(block)
                        if size > entry["bytes"]:
                            break
                        digest.update(block)
                        target.write(block)
            except Exception as error:
                return f"expected a file of {entry['bytes']} bytes, got: {_said(error)}"
            if size != entry["bytes"]:
                return f"expected {entry['bytes']} bytes, got {'more' if size > entry['bytes'] else size}"
            if digest.hexdigest() != entry["sha256"]:
                return f"expected SHA-256 {entry['sha256'][:12]}, got {digest.hexdigest()[:12]}"
            os.replace(temporary, path)
            return None

    def _make_room(self, size: int, name: str) -> None:
        if size > self.limit:
            raise DataError(f"{self.url}/{name}: expected shards within the cache's {self.limit} bytes, got {size}")
        held = []
        # Only in directories with names that this class gives: a user may keep other prepared data there.
        for path in self.cache.glob(f"{'[0-9a-f]' * _NAME_LENGTH}/*/shard-*.bin"):
            with contextlib.suppress(OSError):  # another process removed it
                status = path.stat()
                held.append((status.st_mtime, status.st_size, path))
        held.sort()
        total = sum(entry[1] for entry in held)
        for _, freed, path in held:
            if total + size <= self.limit:
                break
            path.unlink(missing_ok=True)
            total -= freed


class RemoteTokens:
    """The memory maps of a split's shards, by number; shards are fetched on access, and views of a map stay valid.

    The maps that are kept open are within the cache's limit too, since the disk space of a removed file is freed only
    when it is closed.
    """

    def __init__(self, files: RemoteFiles, split: str) -> None:
        self._files, self._entries = files, files.manifest.splits[split]
        self._open: OrderedDict[int, np.ndarray] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self[number] for number in range(len(self)))

    def __getitem__(self, number: int) -> np.ndarray:
        if number in self._open:
            self._open.move_to_end(number)
            return self._open[number]
        name = self._entries[number].bin
        room = self._files.limit - self._files.manifest.files[name]["bytes"]
        while self._open and sum(tokens.nbytes for tokens in self._open.values()) > room:
            self._open.popitem(last=False)
        dtype = self._files.manifest.dtype
        for _ in range(3):
            path = self._files.fetch(name)
            try:
                tokens = mapped(path, dtype)
            except (FileNotFoundError, ValueError):
                continue  # another process removed it meanwhile
            self._open[number] = tokens
            return tokens
        raise DataError(f"{path}: expected the shard to stay in the cache, but it was removed again and again")


def _file_system(url: str):
    import fsspec

    try:
        return fsspec.core.url_to_fs(url)
    except (ImportError, ValueError, OSError) as error:
        raise InputError(
            f"{url}: expected an address of a file system that can be used here, got: {_said(error)}"
        ) from error


def _said(error: Exception) -> str:
    return " ".join(f"{type(error).__name__} {error}".split())[:200]
