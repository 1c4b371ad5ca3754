"""Results in files that appear whole or not at all, or on standard output: texts, JSON, vectors."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np

from .errors import InputError
from .files import whole


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike, mode: str = "w") -> Iterator[IO]:
    """Opens a file that appears under its name only when all of it is on disk; on failure nothing is left.

    A path that exists and is no regular file (a pipe, a device) is written directly, and so is ``-``, standard output.

    Raises:
        OSError: with the path in it, also where the operating system gives none (a full disk).
    """
    if os.fspath(path) == "-":
        yield sys.stdout.buffer if "b" in mode else sys.stdout
        return
    text = {} if "b" in mode else {"encoding": "utf-8", "newline": "\n"}
    with whole(path) as place, open(place, mode, **text) as file:
        yield file


def written(*paths: str | os.PathLike) -> list[Path]:
    """The paths that `atomic_write` has made files of: all but standard output."""
    return [Path(path) for path in paths if os.fspath(path) != "-"]


class _OnlyAskedError(Exception):
    pass


def check_writable(path: str | os.PathLike, *read: str | os.PathLike) -> None:
    """Asks before long work whether `atomic_write` can make a file there, and leaves everything as it was.

    Args:
        path: what is to be written.
        read: files that the work reads, of which it must be none.

    Raises:
        InputError: it is one of them, and would be lost.
        OSError: as `atomic_write` would raise it.
    """
    if os.path.isfile(path) and any(os.path.exists(file) and os.path.samefile(path, file) for file in read):
        raise InputError(f"{path}: expected another file to write than the one that is read, got the same")
    if os.fspath(path) == "-" or (os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)):
        return  # who reads a pipe would take this for the end
    with contextlib.suppress(_OnlyAskedError), atomic_write(path):
        raise _OnlyAskedError


def write_json(value: object, path: str | os.PathLike) -> None:
    """Writes a value as indented JSON."""
    with atomic_write(path) as file:
        json.dump(value, file, indent=2, ensure_ascii=False)
        file.write("\n")


def write_json_lines(values, path: str | os.PathLike) -> None:
    """Writes one JSON value a line."""
    with atomic_write(path) as file:
        for value in values:
            file.write(json.dumps(value, ensure_ascii=False) + "\n")


class NpyWriter:
    """Rows of a (N, dim) float32 .npy file, N being known only at the end; see `write_npy`."""

    def __init__(self, file: IO[bytes]):
        self._file = file
        self._dim = 0
        self.rows = 0

    def append(self, values: np.ndarray) -> None:
        """Adds rows, (n, dim) of any floating dtype."""
        if self.rows == 0:
            self._dim = values.shape[1]
            self._write_header()
        self._file.write(np.ascontiguousarray(values, dtype="<f4").tobytes())
        self.rows += len(values)

    def finish(self) -> None:
        """Puts the number of rows into the header: numpy leaves room there for the first axis to grow."""
        self._file.seek(0)
        self._write_header()
        self._file.seek(0, os.SEEK_END)

    def _write_header(self) -> None:
        header = {"descr": "<f4", "fortran_order": False, "shape": (self.rows, self._dim)}
        np.lib.format.write_array_header_1_0(self._file, header)


@contextlib.contextmanager
def write_npy(path: str | os.PathLike) -> Iterator[NpyWriter]:
    """Writes a .npy file row by row in flat memory; it appears when the block ends without an exception.

    Raises:
        InputError: standard output or a pipe.
    """
    with contextlib.nullcontext() if os.fspath(path) == "-" else atomic_write(path, "wb") as file:
        if file is None or not file.seekable():
            # The number of rows, known at the end, stands at the beginning.
            raise InputError(f"{path}: expected a file to write vectors to, got standard output or a pipe")
        writer = NpyWriter(file)
        yield writer
        writer.finish()
