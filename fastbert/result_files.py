"""Writes results (text, JSON, vectors) to standard output, or atomically to files."""

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
    """Opens a file for writing that gets its name only when all of it is on disk; on failure nothing is left.

    Standard output (``-``) and an existing path that is not a regular file (a pipe, a device) are written directly. A
    link stays, and what it leads to is written, as by a shell's redirection.

    Args:
        path: the file to write, or "-".
        mode: "w" for text in UTF-8, or "wb".

    Raises:
        OSError: the file cannot be written; it names ``path``, even if the system's error names none (a full disk).
    """
    if os.fspath(path) == "-":
        yield sys.stdout.buffer if "b" in mode else sys.stdout
        return
    if os.path.islink(path) and (os.path.isfile(path) or not os.path.exists(path)):  # /dev/stdout leads to a pipe
        path = os.path.realpath(path)
    text = {} if "b" in mode else {"encoding": "utf-8", "newline": "\n"}
    with whole(path) as place, open(place, mode, **text) as file:
        yield file


def written(*paths: str | os.PathLike) -> list[Path]:
    """Those of the paths that are files after `atomic_write`: all but standard output."""
    return [Path(path) for path in paths if os.fspath(path) != "-"]


class _OnlyAskedError(Exception):
    pass


def check_writable(path: str | os.PathLike, *read: str | os.PathLike) -> None:
    """Checks, before long work, that `atomic_write` can write a file; changes nothing.

    Args:
        path: the file to be written.
        read: the files that the work reads.

    Raises:
        InputError: ``path`` is one of the files that are read and would be overwritten.
        OSError: the file cannot be written.
    """
    if os.path.isfile(path) and any(os.path.exists(file) and os.path.samefile(path, file) for file in read):
        raise InputError(f"{path}: expected an output file that is not the input, got the same file")
    if os.fspath(path) == "-" or (os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)):
        return  # opening and closing a pipe would be an end of file to its reader
    with contextlib.suppress(_OnlyAskedError), atomic_write(path):
        raise _OnlyAskedError


def write_json(value: object, path: str | os.PathLike) -> None:
    """Writes a value as indented JSON."""
    with atomic_write(path) as file:
        json.dump(value, file, indent=2, ensure_ascii=False)
        file.write("\n")


def write_json_lines(values, path: str | os.PathLike) -> None:
    """Writes each value as a line of JSON."""
    with atomic_write(path) as file:
        for value in values:
            file.write(json.dumps(value, ensure_ascii=False) + "\n")


class NpyWriter:
    """Writes the rows of an (N, dim) float32 .npy file whose N is known only at the end; see `write_npy`."""

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
        """Writes the number of rows into the header, in which numpy leaves space for the first axis to grow."""
        self._file.seek(0)
        self._write_header()
        self._file.seek(0, os.SEEK_END)

    def _write_header(self) -> None:
        header = {"descr": "<f4", "fortran_order": False, "shape": (self.rows, self._dim)}
        np.lib.format.write_array_header_1_0(self._file, header)


@contextlib.contextmanager
def write_npy(path: str | os.PathLike) -> Iterator[NpyWriter]:
    """Writes a .npy file row by row, in constant memory; it appears when the block ends without an exception.

    Raises:
        InputError: ``path`` is standard output or a pipe.
    """
    with contextlib.nullcontext() if os.fspath(path) == "-" else atomic_write(path, "wb") as file:
        if file is None or not file.seekable():
            # The number of rows is known at the end, but written at the beginning.
            raise InputError(f"{path}: expected a file to write vectors to, got standard output or a pipe")
        writer = NpyWriter(file)
        yield writer
        writer.finish()
