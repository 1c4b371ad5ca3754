"""TensorFlow's tensor bundles, ``NAME.index`` and ``NAME.data-0000k-of-0000n`` of a checkpoint, without TensorFlow.

The index is a LevelDB table of names to descriptions (where a tensor lies, its type, shape and checksum), the data
files are the tensors end to end. Format: tensorflow/core/util/tensor_bundle and tensorflow/core/lib/io/format.h. Every
checksum is compared; nothing in a file is trusted.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from ..errors import CheckpointError
from .crc32c import crc32c, masked

_MAGIC = 0xDB4775248B80FB57
_FOOTER = 48
_TRAILER = 5  # kind of compression, masked checksum
_PLAIN, _SNAPPY = 0, 1
_MAX_INDEX_BYTES = 64 << 20
_MAX_SHARDS = 4096
_RESTART_EVERY = 16
_BLOCK_BYTES = 256 << 10
# DataType of tensorflow/core/framework/types.proto; bfloat16 and its like have no type in numpy, so bytes are read.
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
    """Where a tensor is: its type's number, shape, shard, place in it in bytes, and masked checksum."""

    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    crc: int


@cache
def _messages() -> tuple[type, type]:
    """BundleHeaderProto and BundleEntryProto (tensorflow/core/protobuf/tensor_bundle.proto), as far as we need them."""
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


# --- reading ---


def read_index(path) -> tuple[int, dict[str, Entry]]:
    """The number of data files, and name -> entry, of an index file.

    Raises:
        CheckpointError: damaged, compressed in another way than Snappy's, big-endian, or a tensor cut in slices.
    """
    from google.protobuf.message import DecodeError

    path = Path(path)
    try:
        if path.stat().st_size > _MAX_INDEX_BYTES:
            raise CheckpointError(f"{path}: expected at most {_MAX_INDEX_BYTES} bytes, got {path.stat().st_size}")
        content = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: expected the index of a checkpoint, got: {error.strerror}") from error
    header_type, entry_type = _messages()
    entries: dict[str, Entry] = {}
    try:
        rows = dict(_table_rows(content))
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


def _table_rows(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The rows of a LevelDB table."""
    if len(content) < _FOOTER or struct.unpack("<Q", content[-8:])[0] != _MAGIC:
        raise ValueError("its last bytes are not those of a table")
    footer = content[-_FOOTER:]
    meta, at = _handle(footer, 0)
    index, _ = _handle(footer, at)
    if list(_block(content, *meta)):
        raise ValueError("it has meta blocks, which TensorFlow does not write")
    for _, value in _block(content, *index):
        yield from _block(content, *_handle(value, 0)[0])


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 64, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("a number is longer than 64 bits")


def _handle(data: bytes, at: int) -> tuple[tuple[int, int], int]:
    offset, at = _varint(data, at)
    size, at = _varint(data, at)
    return (offset, size), at


def _block(content: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """The rows of one block: each key gives only what differs from the one before."""
    block = content[offset : offset + size]
    trailer = content[offset + size : offset + size + _TRAILER]
    if len(block) != size or len(trailer) != _TRAILER or size < 4:
        raise ValueError("a block ends outside the file")
    if trailer[0] not in (_PLAIN, _SNAPPY):
        raise ValueError(f"its blocks are compressed in a way that TensorFlow does not know, number {trailer[0]}")
    if masked(crc32c(trailer[:1], crc32c(block))) != struct.unpack("<I", trailer[1:])[0]:
        raise ValueError("the checksum of a block differs")
    if trailer[0] == _SNAPPY:
        block = _unpacked(block)
    end = len(block) - 4 - 4 * struct.unpack("<I", block[-4:])[0]
    at, key = 0, b""
    while at < end:
        shared, at = _varint(block, at)
        fresh, at = _varint(block, at)
        length, at = _varint(block, at)
        if shared > len(key) or at + fresh + length > end:
            raise ValueError("a row ends outside its block")
        key = key[:shared] + block[at : at + fresh]
        yield key, block[at + fresh : at + fresh + length]
        at += fresh + length


def _unpacked(block: bytes) -> bytes:
    """The content of a block in Snappy's format (google/snappy, format_description.txt): its length, then pieces, each
    given byte for byte or as a copy of what came before. Some builds of TensorFlow write indices so."""
    size, at = _varint(block, 0)
    if not 4 <= size <= _MAX_INDEX_BYTES:
        raise ValueError(f"a compressed block says that it has {size} bytes")
    out = bytearray()
    while at < len(block) and len(out) < size:
        tag, at = block[at], at + 1
        kind, length = tag & 3, (tag >> 2) + 1
        if kind == 0:
            if length > 60:  # too long for the tag: it follows, in 1 to 4 bytes
                width = length - 60
                length, at = int.from_bytes(block[at : at + width], "little") + 1, at + width
            out += block[at : at + length]
            at += length
            continue
        width, back = (1, 2, 4)[kind - 1], 0
        if kind == 1:
            length, back = (tag >> 2 & 7) + 4, tag >> 5 << 8
        back, at = back + int.from_bytes(block[at : at + width], "little"), at + width
        if not 0 < back <= len(out):
            raise ValueError("a compressed block copies what is not there")
        # A copy may be longer than what it begins with: it goes round then.
        copied = out[len(out) - back : len(out) - back + length]
        out += (copied * -(-length // len(copied)))[:length]
    if len(out) != size or at != len(block):
        raise ValueError("a compressed block has another length than it says")
    return bytes(out)


def shard_path(prefix, shard: int, num_shards: int) -> Path:
    """The name of a data file."""
    return Path(f"{prefix}.data-{shard:05d}-of-{num_shards:05d}")


def read_bundle(prefix, wanted=None) -> dict[str, Tensor]:
    """The tensors of a checkpoint, by TensorFlow's names.

    Args:
        prefix: the path without ``.index``.
        wanted: name -> bool, which tensors to read; all numeric ones where it is not given.

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


# --- writing ---


def write_data(tensors: Mapping[str, Tensor], file: BinaryIO) -> dict[str, Entry]:
    """Writes the tensors end to end in the order of their names; returns what the index says of them."""
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
    return _table_bytes(sorted(rows.items()))


def _table_bytes(rows: list[tuple[bytes, bytes]]) -> bytes:
    """A LevelDB table, uncompressed."""
    out, handles, chunk, size = bytearray(), [], [], 0
    for i, (key, value) in enumerate(rows):
        chunk.append((key, value))
        size += len(key) + len(value)
        if size >= _BLOCK_BYTES or i == len(rows) - 1:
            # What stands for a block in the index: not below its last key, and below the next one's first.
            last = key if i < len(rows) - 1 else _short_successor(key)
            handles.append((last, _append_block(out, chunk, _RESTART_EVERY)))
            chunk, size = [], 0
    meta = _append_block(out, [], _RESTART_EVERY)
    index = _append_block(out, handles, 1)
    footer = meta + index
    return bytes(out) + footer.ljust(_FOOTER - 8, b"\0") + struct.pack("<Q", _MAGIC)


def _short_successor(key: bytes) -> bytes:
    """The shortest key that is not below this one, as LevelDB finds it."""
    for i, byte in enumerate(key):
        if byte != 0xFF:
            return key[:i] + bytes([byte + 1])
    return key


def _append_block(out: bytearray, rows: list[tuple[bytes, bytes]], restart_every: int) -> bytes:
    """Appends a block with its trailer; returns its handle."""
    block, restarts, before = bytearray(), [0], b""
    for i, (key, value) in enumerate(rows):
        shared = 0
        if i % restart_every:
            while shared < min(len(key), len(before)) and key[shared] == before[shared]:
                shared += 1
        elif i:
            restarts.append(len(block))
        block += _number(shared) + _number(len(key) - shared) + _number(len(value)) + key[shared:] + value
        before = key
    block += struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))
    handle = _number(len(out)) + _number(len(block))
    out += block + b"\0" + struct.pack("<I", masked(crc32c(b"\0", crc32c(block))))
    return handle


def _number(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
