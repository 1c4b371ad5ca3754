"""Writes tensors to a safetensors file block by block, and computes the SHA-256 of what was written.

A checkpoint needs neither a second copy in memory nor a second pass over the file.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import mmap
import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
from torch import Tensor

from ..errors import CheckpointError
from ..weights.safetensors_format import bytes_of, header_of

_BLOCK = 16 << 20
# Buffers: one is filled, one hashed and written, and one waits.
_ROOMS = 3
_PAGE = 4096
_DIRECT = getattr(os, "O_DIRECT", 0)


def write_bytes(path: Path, data: bytes) -> dict:
    """Writes a small file and forces it to the disk; returns and raises as `write_tensors`."""
    return _write(path, len(data), iter([np.frombuffer(data, np.uint8)]))


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> dict:
    """Writes a safetensors file and forces it to the disk; tensors that share memory are each written in full.

    Args:
        path: the file.
        tensors: by name; of any shape, on any device, of a dtype that `header_of` knows.

    Returns:
        the file's entry in a manifest, {"bytes": size, "sha256": hex}, computed from what was written.

    Raises:
        CheckpointError: the file, which is named with its size, cannot be written, or a tensor has another dtype.
    """
    header, order = header_of(tensors)
    size = sum(tensor.nbytes for tensor in tensors.values())
    return _write(path, len(header) + size, _blocks(header, [tensors[name] for name in order]))


def _blocks(header: bytes, tensors: list[Tensor]) -> Iterator[np.ndarray]:
    yield np.frombuffer(header, np.uint8)
    for tensor in tensors:
        flat = bytes_of(tensor)
        # One slice at a time, so that at most one block of a GPU's tensor is in the CPU's memory.
        for first in range(0, len(flat), _BLOCK):
            yield flat[first : first + _BLOCK].cpu().numpy()


def _write(path: Path, size: int, blocks: Iterator[np.ndarray]) -> dict:
    """Copies, hashes and writes at the same time, since SHA-256 and a disk are about equally fast."""
    digest = hashlib.sha256()
    stream = _Stream(blocks)
    try:
        with (
            open(path, "wb", buffering=0) as file,
            ThreadPoolExecutor(1) as hashing,
            ThreadPoolExecutor(1) as writing,
        ):
            # Anonymous maps are aligned to pages, which O_DIRECT requires.
            maps = (mmap.mmap(-1, min(_BLOCK, max(size, 1))) for _ in range(_ROOMS))
            rooms: deque[tuple[np.ndarray, list[Future]]] = deque((np.frombuffer(m, np.uint8), []) for m in maps)
            while True:
                room, tasks = rooms[0]
                for task in tasks:
                    task.result()
                filled = stream.fill(room)
                piece = memoryview(room)[:filled]
                tasks[:] = [hashing.submit(digest.update, piece), writing.submit(_put, file, piece)] if filled else []
                if filled < len(room):
                    break
                rooms.rotate(-1)
            for _, tasks in rooms:
                for task in tasks:
                    task.result()
            os.fsync(file.fileno())
    except OSError as error:
        raise CheckpointError(f"{path}: {size} bytes could not be written: {error.strerror or error}") from error
    return {"bytes": size, "sha256": digest.hexdigest()}


class _Stream:
    """Reads blocks of any sizes into buffers of one size."""

    def __init__(self, blocks: Iterator[np.ndarray]) -> None:
        self._blocks = blocks
        self._rest = np.empty(0, np.uint8)

    def fill(self, room: np.ndarray) -> int:
        """Copies into the buffer until it is full or the blocks end; returns the number of bytes."""
        filled = 0
        while filled < len(room):
            if not len(self._rest):
                following = next(self._blocks, None)
                if following is None:
                    break
                self._rest = following
            taken = min(len(room) - filled, len(self._rest))
            # Assigning to a memoryview would hold the GIL, for which the training thread would wait.
            np.copyto(room[filled : filled + taken], self._rest[:taken])
            self._rest = self._rest[taken:]
            filled += taken
        return filled


def _put(file, piece: memoryview) -> None:
    """Writes with O_DIRECT, past the page cache, if the file system supports it: about twice as fast, and nothing is
    evicted from the cache."""
    direct = len(piece) % _PAGE == 0 and _set_direct(file, True)
    while piece:
        try:
            taken = file.write(piece)
        except OSError as error:
            # Some file systems accept the flag but not the write.
            if not direct or error.errno != errno.EINVAL:
                raise
            taken = 0
        piece = piece[taken:]
        if direct and piece:  # the rest may not be aligned to a page
            direct = _set_direct(file, False)
    if direct:
        _set_direct(file, False)


def _set_direct(file, on: bool) -> bool:
    """Sets or clears O_DIRECT; returns whether that worked."""
    if not _DIRECT:
        return False
    flags = fcntl.fcntl(file.fileno(), fcntl.F_GETFL)
    try:
        fcntl.fcntl(file.fileno(), fcntl.F_SETFL, flags | _DIRECT if on else flags & ~_DIRECT)
    except OSError:
        return False
    return on
