"""Maps files of numbers into memory, to be read only."""

from __future__ import annotations

import mmap
import os

import numpy as np


def mapped(path: str | os.PathLike, dtype: str | np.dtype) -> np.ndarray:
    """The numbers of a file, 1-D, which are read from the disk when they are needed.

    The map is private: some network file systems and FUSE have no shared ones, which numpy's memmap would ask for.

    Raises:
        OSError: the file cannot be read or mapped; it names ``path``.
        ValueError: the file is empty.
    """
    with open(path, "rb") as file:
        try:
            pages = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
        except OSError as error:
            raise OSError(error.errno, error.strerror, os.fspath(path)) from error
    return np.frombuffer(pages, dtype)


def is_cut(numbers: np.ndarray) -> bool:
    """Whether the file of a map, or of a view of one, is shorter now than when it was mapped. Reading what is missing
    would end the process with SIGBUS, so this is asked before."""
    pages = numbers
    while isinstance(pages, np.ndarray):
        pages = pages.base
    return pages.obj.size() < pages.nbytes
