"""Files and directories that appear whole or not at all, what is forced to the disk, and names that are free."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import hashlib
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from .errors import FastbertError, InputError

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of a disk, of what one user may have of it, of one file."""

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
            with contextlib.suppress(OSError):  # not empty: something else was put into it
                directory.rmdir()


@contextlib.contextmanager
def unfinished(path: Path) -> Iterator[Path]:
    """Gives the name of an empty file beside ``path`` to write, for the caller to rename; what still has that name when
    the block ends is removed. What killed processes left of the same file goes first.

    Raises:
        OSError: no file can be made there; of ``path``.
    """
    remove_unfinished(path.parent, path.name)
    number = uuid.uuid4().hex[:12]
    # It is held before it has the name that is looked for: one that nobody holds is a dead process's.
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
    """Removes the files of `unfinished` that killed processes left in a directory: all, or those of one name."""
    for left in directory.glob(f".tmp-{'?' * 12}-{'*' if name is None else glob.escape(name)}"):
        with contextlib.suppress(OSError), held(left) as free:
            if free:
                left.unlink()


@contextlib.contextmanager
def _errors_of(path: Path, written: Path | None) -> Iterator[None]:
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
def whole_directory(path: Path) -> Iterator[Path]:
    """Gives a name beside ``path``, to make a directory under that is there under ``path`` when the block ends.

    When the block fails nothing is left of it, and what was there before stays. A process that is killed while one
    takes the other's place leaves the one before beside it: see `is_there`.

    Raises:
        OSError: the directory cannot take its place.
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
    """Whether there is a directory of `whole_directory`; it is put back where a crash came between its two renames."""
    old = _before(path)
    if old.exists() and not path.exists():
        os.rename(old, path)
    return path.exists()


def _before(path: Path) -> Path:
    return path.with_name(f"{path.name}.old")


@contextlib.contextmanager
def held(directory: str | os.PathLike) -> Iterator[bool]:
    """Locks a directory or a file of unfinished work, and the system lets go of it when the process ends in any way.

    False where another process holds it, or where the file system knows no locks: there leftovers stay.
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
    """Removes directories that killed processes left: those of a pattern that no process holds by `held`."""
    for left in parent.glob(pattern):
        with contextlib.suppress(OSError), held(left) as free:
            # One that is a moment old may be about to be held.
            if free and time.time() - left.stat().st_mtime > _YOUNG_SECONDS:
                shutil.rmtree(left, ignore_errors=True)


def check_new(directory: str | os.PathLike) -> None:
    """Raises InputError where a directory that is to be made would mix with what is there.

    What a killed process left in it of files that it wrote is removed, and is no reason.
    """
    directory = Path(directory)
    remove_unfinished(directory)
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
