"""Reads and writes TensorFlow's tensor bundles (a checkpoint's ``NAME.index`` and ``NAME.data-0000k-of-0000n``) without
TensorFlow.

The index is a LevelDB table that maps names to descriptions (a tensor's location, type, shape and checksum); the data
files have the tensors end to end. Format: tensorflow/core/util/tensor_bundle. Every checksum is verified; nothing in a
file is trusted.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from ..errors import CheckpointError
from .crc32c import crc32c, masked
from .leveldb import MAX_BYTES, table_bytes, table_rows

_MAX_SHARDS = 4096
# DataType of tensorflow/core/framework/types.proto; numpy has no bfloat16 and the like, so bytes are read.
_TYPES = {
    1: torch.float32,
    2: torch.float64,
    3: torch.int32,
    4: torch.uint8,
    5: torch.int16,
    6: torch.int8,
    9: torch.int64,
    10: torch.bool,
    14: torch.bfloat16,
    19: torch.float16,
}
_NUMBERS = {dtype: number for number, dtype in _TYPES.items()}


@dataclass(frozen=True)
class Entry:
    """The description of a tensor: the number of its type, shape, shard, offset and size in bytes, masked checksum."""

    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    crc: int


@cache
def _messages() -> tuple[type, type]:
    """BundleHeaderProto and BundleEntryProto (tensorflow/core/protobuf/tensor_bundle.proto) with some fields."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    kind = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="fastbert_bundle.proto", package="fastbert", syntax="proto3")

    def message(name: str, *fields: tuple[str, int, int, str | None]) -> None:
        made = file.message_type.add(name=name)
        for field, number, type_, of in fields:
            repeated = field in ("dim", "slices")
            label = kind.LABEL_REPEATED if repeated else kind.LABEL_OPTIONAL
            made.field.add(name=field, number=number, type=type_, label=label, type_name=of and f".fastbert.{of}")

    number, nested = kind.TYPE_INT64, kind.TYPE_MESSAGE
    message("Dim", ("size", 1, number, None))
    message("Shape", ("dim", 2, nested, "Dim"), ("unknown_rank", 3, kind.TYPE_BOOL, None))
    message("Version", ("producer", 1, kind.TYPE_INT32, None), ("min_consumer", 2, kind.TYPE_INT32, None))
    message(
        "Header", ("num_shards", 1, number, None), ("endianness", 2, number, None), ("version", 3, nested, "Version")
    )
    message(
        "Entry",
        ("dtype", 1, number, None),
        ("shape", 2, nested, "Shape"),
        ("shard_id", 3, number, None),
        ("offset", 4, number, None),
        ("size", 5, number, None),
        ("crc32c", 6, kind.TYPE_FIXED32, None),
        ("slices", 7, kind.TYPE_BYTES, None),
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return tuple(
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"fastbert.{name}")) for name in ("Header", "Entry")
    )


def read_index(path) -> tuple[int, dict[str, Entry]]:
    """The number of data files, and name -> entry, of an index file.

    Raises:
        CheckpointError: it is damaged, compressed by something other than Snappy or big-endian, or a tensor is stored
            in slices.
    """
    from google.protobuf.message import DecodeError

    path = Path(path)
    try:
        if path.stat().st_size > MAX_BYTES:
            raise CheckpointError(f"{path}: expected at most {MAX_BYTES} bytes, got {path.stat().st_size}")
        content = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: expected the index of a checkpoint, got: {error.strerror}") from error
    header_type, entry_type = _messages()
    entries: dict[str, Entry] = {}
    try:
        rows = dict(table_rows(content))
        header = header_type.FromString(rows.pop(b""))
        for key, value in rows.items():
            made = entry_type.FromString(value)
            if made.slices:
                raise ValueError(f"{key[:100]!r} is cut in slices, which is not supported")
            shape = tuple(dim.size for dim in made.shape.dim)
            name = key.decode("utf-8")
            entries[name] = Entry(made.dtype, shape, made.shard_id, made.offset, made.size, made.crc32c)
    except (ValueError, KeyError, IndexError, struct.error, DecodeError) as error:
        reason = "no header" if isinstance(error, KeyError) else str(error)
        raise CheckpointError(f"{path}: expected the index of a checkpoint, got a damaged file: {reason}") from error
    if header.endianness != 0 or not 0 < header.num_shards <= _MAX_SHARDS:
        raise CheckpointError(
            f"{path}: expected little-endian numbers in 1 to {_MAX_SHARDS} files, got endianness "
            f"{header.endianness} and {header.num_shards} files"
        )
    return header.num_shards, entries


def shard_path(prefix, shard: int, num_shards: int) -> Path:
    """The name of a data file."""
    return Path(f"{prefix}.data-{shard:05d}-of-{num_shards:05d}")


def read_bundle(prefix, wanted=None) -> dict[str, Tensor]:
    """Reads the tensors of a checkpoint, by TensorFlow's names.

    Args:
        prefix: the path without ``.index``.
        wanted: name -> bool, whether to read a tensor; by default all numeric ones are read.

    Raises:
        CheckpointError: a file is missing or damaged, or a description does not fit the data.
    """
    num_shards, entries = read_index(f"{prefix}.index")
    state: dict[str, Tensor] = {}
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].shard, item[1].offset)):
        if entry.dtype in _TYPES and (wanted is None or wanted(name)):
            state[name] = _read_tensor(prefix, num_shards, name, entry)
    return state


def _read_tensor(prefix, num_shards: int, name: str, entry: Entry) -> Tensor:
    dtype = _TYPES[entry.dtype]
    path = shard_path(prefix, entry.shard, num_shards)
    count = math.prod(entry.shape)
    if min(entry.shape, default=0) < 0 or entry.size != count * dtype.itemsize or not 0 <= entry.shard < num_shards:
        raise CheckpointError(
            f"{prefix}.index: expected {name!r:.100} to be {count} numbers of {dtype.itemsize} bytes, got {entry.size}"
        )
    try:
        with path.open("rb") as file:
            if entry.offset < 0 or entry.offset + entry.size > path.stat().st_size:
                raise CheckpointError(f"{path}: expected {name!r:.100} inside the file, got an end past it")
            file.seek(entry.offset)
            raw = np.fromfile(file, dtype=np.uint8, count=entry.size)
    except OSError as error:
        raise CheckpointError(f"{path}: expected the data of a checkpoint, got: {error.strerror}") from error
    if masked(crc32c(raw)) != entry.crc:
        raise CheckpointError(f"{path}: the checksum of {name!r:.100} differs, the file is damaged")
    if not count:
        return torch.empty(entry.shape, dtype=dtype)
    return torch.from_numpy(raw).view(dtype).reshape(entry.shape)


def write_data(tensors: Mapping[str, Tensor], file: BinaryIO) -> dict[str, Entry]:
    """Writes the tensors end to end in the order of their names; returns their entries for the index."""
    entries, offset = {}, 0
    for name, tensor in sorted(tensors.items(), key=lambda item: item[0].encode()):
        if tensor.dtype not in _NUMBERS:
            raise CheckpointError(f"{name}: expected a type that a checkpoint can hold, got {tensor.dtype}")
        raw = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        file.write(raw.data)
        crc = masked(crc32c(raw))
        entries[name] = Entry(_NUMBERS[tensor.dtype], tuple(tensor.shape), 0, offset, raw.size, crc)
        offset += raw.size
    return entries


def index_bytes(entries: Mapping[str, Entry], num_shards: int = 1) -> bytes:
    """The content of an index file."""
    header_type, entry_type = _messages()
    header: Any = header_type(num_shards=num_shards)
    header.version.producer = 1
    rows = {b"": header.SerializeToString()}
    for name, entry in entries.items():
        made: Any = entry_type(dtype=entry.dtype, shard_id=entry.shard, offset=entry.offset, size=entry.size)
        made.crc32c = entry.crc
        made.shape.SetInParent()
        for size in entry.shape:
            made.shape.dim.add(size=size)
        rows[name.encode()] = made.SerializeToString(deterministic=True)
    return table_bytes(sorted(rows.items()))
