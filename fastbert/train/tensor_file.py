"""Tensors to a safetensors file, block by block, with the SHA-256 of what was written.

The library writes a file from one string of bytes, or without telling what it wrote; a checkpoint wants neither a
second copy in memory nor a second pass over the file. The format is that of huggingface/safetensors: eight bytes with
the length of a JSON header, the header, the tensors end to end.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import mmap
import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..errors import CheckpointError

_BLOCK = 16 << 20
# One is filled, one hashed and written, and one waits.
_ROOMS = 3
_PAGE = 4096
_DIRECT = getattr(os, "O_DIRECT", 0)
_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def write_bytes(path: Path, data: bytes) -> dict:
    """A small file, forced to the disk; returns its entry of a manifest."""
    return _write(path, len(data), iter([np.frombuffer(data, np.uint8)]))


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> dict:
    """A safetensors file, forced to the disk; tensors that share memory are written each.

    Returns:
        {"bytes": size, "sha256": hex}, computed from what was given to the disk.

    Raises:
        CheckpointError: naming the file and its size, or a tensor of a dtype that the format does not know.
    """
    header, size, order = _header(path, tensors)
    return _write(path, len(header) + size, _blocks(header, [tensors[name] for name in order]))


def _header(path: Path, tensors: dict[str, Tensor]) -> tuple[bytes, int, list[str]]:
    """The header with its length in front, the bytes of the tensors, and the order of these."""
    table, end = {}, 0
    # The widest first, so that each begins at a multiple of its width.
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    for name in order:
        tensor = tensors[name]
        if tensor.dtype not in _NAMES:
            raise CheckpointError(f"{path}: {name} must be of a dtype that a checkpoint can hold, got {tensor.dtype}")
        begin, end = end, end + tensor.numel() * tensor.element_size()
        table[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, end, order


def _blocks(header: bytes, tensors: list[Tensor]) -> Iterator[np.ndarray]:
    yield np.frombuffer(header, np.uint8)
    for tensor in tensors:
        if tensor.numel():
            # A slice at a time, so that of a GPU's tensor one block is on its way at most.
            flat = tensor.detach().reshape(-1).view(torch.uint8)
            for first in range(0, len(flat), _BLOCK):
                yield flat[first : first + _BLOCK].cpu().numpy()


def _write(path: Path, size: int, blocks: Iterator[np.ndarray]) -> dict:
    """Copies, hashes and writes at the same time: the disk and SHA-256 are about as fast as each other."""
    digest = hashlib.sha256()
    stream = _Stream(blocks)
    try:
        with (
            open(path, "wb", buffering=0) as file,
            ThreadPoolExecutor(1) as hashing,
            ThreadPoolExecutor(1) as writing,
        ):
            # Anonymous maps begin at a page, which writing past the page cache asks for.
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
    """Blocks of any sizes, read in rooms of one size."""

    def __init__(self, blocks: Iterator[np.ndarray]) -> None:
        self._blocks = blocks
        self._rest = np.empty(0, np.uint8)

    def fill(self, room: np.ndarray) -> int:
        """Copies into ``room`` until it is full or the blocks end; returns how many bytes."""
        filled = 0
        while filled < len(room):
            if not len(self._rest):
                following = next(self._blocks, None)
                if following is None:
                    break
                self._rest = following
            taken = min(len(room) - filled, len(self._rest))
            # Not a memoryview's assignment, which would hold Python's lock against the training that goes on.
            np.copyto(room[filled : filled + taken], self._rest[:taken])
            self._rest = self._rest[taken:]
            filled += taken
        return filled


def _put(file, piece: memoryview) -> None:
    """Writes past the page cache where the file system can: about twice as fast, and what is cached stays cached."""
    direct = len(piece) % _PAGE == 0 and _set_direct(file, True)
    while piece:
        try:
            taken = file.write(piece)
        except OSError as error:
            # A file system that takes the flag and then not the write.
            if not direct or error.errno != errno.EINVAL:
                raise
            taken = 0
        piece = piece[taken:]
        if direct and piece:  # what is left need not begin at a page
            direct = _set_direct(file, False)
    if direct:
        _set_direct(file, False)


def _set_direct(file, on: bool) -> bool:
    """Whether the file is now written past the page cache."""
    if not _DIRECT:
        return False
    flags = fcntl.fcntl(file.fileno(), fcntl.F_GETFL)
    try:
        fcntl.fcntl(file.fileno(), fcntl.F_SETFL, flags | _DIRECT if on else flags & ~_DIRECT)
    except OSError:
        return False
    return on
