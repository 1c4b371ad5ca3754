"""Files and directories that are written atomically, flushing to disk, and checks of the names of new directories."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import hashlib
import os
import shutil
import stat
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from .errors import FastbertError, InputError

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers for no space: the disk is full, the user's quota is used up, the file is too large."""

_YOUNG_SECONDS = 60.0

STANDARD_OUTPUT = ("-", "/dev/stdout")
"""Names of standard output. A run directory may have neither: the first would be made as a directory called "-", the
second is a link."""


@contextlib.contextmanager
def whole(path: str | os.PathLike) -> Iterator[Path]:
    """Yields a temporary path beside ``path``, with the same suffix, under which to write a file.

    When the block ends, the file is flushed to disk and renamed to ``path``. If the block fails, the temporary file is
    removed and an earlier file stays. Missing parent directories are made, and removed again on failure.

    If ``path`` exists and is not a regular file (a pipe or a device), it is yielded itself: it must not be replaced.

    Raises:
        OSError: the file cannot be written; it names ``path``, since the temporary name means nothing to the user.
    """
    path = Path(path)
    if path.exists() and not path.is_file():
        with _errors_of(path, path):
            yield path
        return
    made = [parent for parent in path.parents if not parent.exists()]
    try:
        with _errors_of(path, None):
            _make_directory(path.parent)
        with unfinished(path) as temporary, _errors_of(path, temporary):
            yield temporary
            flush(temporary)
            os.replace(temporary, path)
        made = []
    finally:
        for directory in made:
            with contextlib.suppress(OSError):  # not empty: something else was written into it
                directory.rmdir()


@contextlib.contextmanager
def unfinished(path: Path) -> Iterator[Path]:
    """Yields the path of an empty temporary file beside ``path``, which the caller writes and renames. If it still has
    that name when the block ends, it is removed. What killed processes left of the same file is removed first.

    Raises:
        OSError: no file can be made there; it names ``path``.
    """
    remove_unfinished(path.parent, path.name)
    number = uuid.uuid4().hex[:12]
    # It is locked before it gets the name that `remove_unfinished` looks for: such a file without a lock was left by a
    # dead process.
    begun, temporary = path.with_name(f".tmp-{number}"), path.with_name(f".tmp-{number}-{path.name}")
    try:
        with _errors_of(path, begun):
            begun.touch()
        with held(begun):
            with _errors_of(path, begun):
                os.rename(begun, temporary)
            yield temporary
    finally:
        for left in (begun, temporary):
            with contextlib.suppress(OSError):
                left.unlink(missing_ok=True)


def remove_unfinished(directory: Path, name: str | None = None) -> None:
    """Removes the files of `unfinished` that killed processes left in a directory: all of them, or those for the file
    called ``name``."""
    for left in directory.glob(f".tmp-{'?' * 12}-{'*' if name is None else glob.escape(name)}"):
        with contextlib.suppress(OSError), held(left) as free:
            if free:
                left.unlink()


@contextlib.contextmanager
def _errors_of(path: Path, written: Path | None) -> Iterator[None]:
    """Replaces the file name in the system's errors by ``path``, if it is that of ``written`` or missing; where there
    is no more room, says for how much there was some."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename in (None, written, str(written)):
            reason = error.strerror
            if error.errno in NO_ROOM and written is not None and written.is_file():
                reason = f"{reason} after {written.stat().st_size:,} bytes"
            raise OSError(error.errno, reason, str(path)) from error
        raise


def _make_directory(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), error.filename) from error


def write_whole(path: str | os.PathLike, content: str | bytes, raises: type[FastbertError] | None = None) -> None:
    """Writes a file atomically; text is written in UTF-8.

    Args:
        raises: the class of the error to raise; None for OSError.

    Raises:
        FastbertError: of the class ``raises``: the file cannot be written.
        OSError: the same if ``raises`` is None, as by `whole`.
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
    """Renames a finished directory to ``path``. What had that name before is renamed to ``aside``, for the caller to
    remove; if the second rename fails, it gets its name back.

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
def whole_directory(path: Path) -> Iterator[Path]:
    """Yields a path beside ``path``, under which to make a directory that is renamed to ``path`` when the block ends.

    If the block fails, the new directory is removed and an earlier one stays. A process that is killed between the two
    renames leaves the earlier directory under another name: see `is_there`.

    Raises:
        OSError: the directory cannot be renamed.
    """
    fresh, old = path.with_name(f"{path.name}.new"), _before(path)
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        yield fresh
        shutil.rmtree(old, ignore_errors=True)
        put_in_place(fresh, path, old)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)


def is_there(path: Path) -> bool:
    """Whether a directory of `whole_directory` exists; restores the earlier one after a crash between the renames."""
    old = _before(path)
    if old.exists() and not path.exists():
        os.rename(old, path)
    return path.exists()


def _before(path: Path) -> Path:
    return path.with_name(f"{path.name}.old")


@contextlib.contextmanager
def held(directory: str | os.PathLike) -> Iterator[bool]:
    """Locks a directory or a file of unfinished work. The system releases the lock when the process ends in any way.

    Yields False if another process holds the lock, or if the file system has no locks (leftovers then stay).
    """
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
    """Removes directories that killed processes left: those matching a pattern and not locked by `held`."""
    for left in parent.glob(pattern):
        with contextlib.suppress(OSError), held(left) as free:
            # A new one may be about to be locked.
            if free and time.time() - left.stat().st_mtime > _YOUNG_SECONDS:
                shutil.rmtree(left, ignore_errors=True)


def check_new(directory: str | os.PathLike) -> None:
    """Raises InputError if ``directory`` exists and is not an empty directory.

    Temporary files that killed processes left in it are removed first and do not count.
    """
    directory = Path(directory)
    remove_unfinished(directory)
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise InputError(f"{directory} already exists and is not empty: choose another directory, or remove it")


def check_run_name(directory: str | os.PathLike) -> None:
    """Raises InputError for a run directory with the name of standard output, or with a name that is not UTF-8, which
    TensorBoard's writer would refuse only after other files were written."""
    if os.fspath(directory) in STANDARD_OUTPUT:
        raise InputError(f"expected a run directory, got {os.fspath(directory)}, which is the name of standard output")
    try:
        os.fspath(directory).encode("utf-8")
    except UnicodeEncodeError:
        raise InputError(f"expected a run directory with a name in UTF-8, got {os.fspath(directory)!r:.200}") from None


def flush(path: str | os.PathLike) -> None:
    """Flushes a file, or the entries of a directory, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some file systems (VirtualBox's folders, older network ones) cannot flush a directory.
        if error.errno != errno.EINVAL or not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise
    finally:
        os.close(descriptor)


def sha256(path: str | os.PathLike) -> str:
    """The SHA-256 of a file's content, in hexadecimal. Python's global lock is released meanwhile."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:  # the oldest supported Python has no hashlib.file_digest
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
