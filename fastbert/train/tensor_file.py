"""Tensors to a safetensors file, block by block, with the SHA-256 of what was written.

The library writes a file from one string of bytes, or without telling what it wrote; a checkpoint wants neither a
second copy in memory nor a second pass over the file. The format is that of huggingface/safetensors: eight bytes with
the length of a JSON header, the header, the tensors end to end.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

from ..errors import CheckpointError

_BLOCK = 16 << 20
# Blocks that may wait for the hash, which keeps them in memory where they are copies (of a GPU's tensors).
_WAITING = 4
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
    return _write(path, len(data), iter([memoryview(data)]))


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


def _blocks(header: bytes, tensors: list[Tensor]) -> Iterator[memoryview]:
    yield memoryview(header)
    for tensor in tensors:
        if tensor.numel():
            flat = tensor.detach().cpu().contiguous().reshape(-1)
            view = memoryview(flat.view(torch.uint8).numpy())
            for first in range(0, len(view), _BLOCK):
                yield view[first : first + _BLOCK]


def _write(path: Path, size: int, blocks: Iterator[memoryview]) -> dict:
    """Hashes in a thread of its own: the disk and SHA-256 are about as fast as each other."""
    digest = hashlib.sha256()
    waiting: deque[Future] = deque()
    try:
        with open(path, "wb", buffering=0) as file, ThreadPoolExecutor(1) as hashing:
            for block in blocks:
                waiting.append(hashing.submit(digest.update, block))
                while block:
                    block = block[file.write(block) :]
                while len(waiting) > _WAITING:
                    waiting.popleft().result()
            os.fsync(file.fileno())
    except OSError as error:
        raise CheckpointError(f"{path}: {size} bytes could not be written: {error.strerror or error}") from error
    return {"bytes": size, "sha256": digest.hexdigest()}
