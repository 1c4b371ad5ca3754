"""LevelDB tables, the format of a TensorFlow checkpoint's index (tensorflow/core/lib/io/format.h): rows in blocks.

Every checksum is verified; nothing in a file is trusted.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from .crc32c import crc32c, masked

MAX_BYTES = 64 << 20
"""The most bytes of a table, and of a decompressed block: far more than the index of any checkpoint has."""

_MAGIC = 0xDB4775248B80FB57
_FOOTER = 48
_TRAILER = 5  # kind of compression, masked checksum
_PLAIN, _SNAPPY = 0, 1
_RESTART_EVERY = 16
_BLOCK_BYTES = 256 << 10


def table_rows(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The rows of a table, keys and values, in the order of the keys.

    Raises:
        ValueError, IndexError, struct.error: it is damaged, or has features that TensorFlow does not use.
    """
    if len(content) < _FOOTER or struct.unpack("<Q", content[-8:])[0] != _MAGIC:
        raise ValueError("its last bytes are not those of a table")
    footer = content[-_FOOTER:]
    meta, at = _read_handle(footer, 0)
    index, _ = _read_handle(footer, at)
    if list(_read_block(content, *meta)):
        raise ValueError("it has meta blocks, which TensorFlow does not write")
    for _, value in _read_block(content, *index):
        yield from _read_block(content, *_read_handle(value, 0)[0])


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 64, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("a number is longer than 64 bits")


def _read_handle(data: bytes, at: int) -> tuple[tuple[int, int], int]:
    offset, at = _read_varint(data, at)
    size, at = _read_varint(data, at)
    return (offset, size), at


def _read_block(content: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """The rows of one block, in which each key is stored as its difference from the one before."""
    block = content[offset : offset + size]
    trailer = content[offset + size : offset + size + _TRAILER]
    if len(block) != size or len(trailer) != _TRAILER or size < 4:
        raise ValueError("a block ends outside the file")
    if trailer[0] not in (_PLAIN, _SNAPPY):
        raise ValueError(f"its blocks are compressed in a way that TensorFlow does not know, number {trailer[0]}")
    if masked(crc32c(trailer[:1], crc32c(block))) != struct.unpack("<I", trailer[1:])[0]:
        raise ValueError("the checksum of a block differs")
    if trailer[0] == _SNAPPY:
        block = unpacked_snappy(block)
    end = len(block) - 4 - 4 * struct.unpack("<I", block[-4:])[0]
    at, key = 0, b""
    while at < end:
        shared, at = _read_varint(block, at)
        fresh, at = _read_varint(block, at)
        length, at = _read_varint(block, at)
        if shared > len(key) or at + fresh + length > end:
            raise ValueError("a row ends outside its block")
        key = key[:shared] + block[at : at + fresh]
        yield key, block[at + fresh : at + fresh + length]
        at += fresh + length


def unpacked_snappy(block: bytes) -> bytes:
    """Decompresses a block in Snappy's format (google/snappy, format_description.txt), in which some builds of
    TensorFlow write indices: its length, then pieces, which are literal bytes or copies of earlier output."""
    size, at = _read_varint(block, 0)
    if not 4 <= size <= MAX_BYTES:
        raise ValueError(f"a compressed block says that it has {size} bytes")
    out = bytearray()
    while at < len(block) and len(out) < size:
        tag, at = block[at], at + 1
        kind, length = tag & 3, (tag >> 2) + 1
        if kind == 0:
            if length > 60:  # the length does not fit into the tag and follows, in 1 to 4 bytes
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
        # A copy may be longer than its distance; it then repeats.
        copied = out[len(out) - back : len(out) - back + length]
        out += (copied * -(-length // len(copied)))[:length]
    if len(out) != size or at != len(block):
        raise ValueError("a compressed block has another length than it says")
    return bytes(out)


def table_bytes(rows: list[tuple[bytes, bytes]]) -> bytes:
    """A table, uncompressed, of rows in the order of their keys."""
    out, handles, chunk, size = bytearray(), [], [], 0
    for i, (key, value) in enumerate(rows):
        chunk.append((key, value))
        size += len(key) + len(value)
        if size >= _BLOCK_BYTES or i == len(rows) - 1:
            # A block's key in the index is at least its last key and below the first one of the next block.
            last = key if i < len(rows) - 1 else _short_successor(key)
            handles.append((last, _append_block(out, chunk, _RESTART_EVERY)))
            chunk, size = [], 0
    meta = _append_block(out, [], _RESTART_EVERY)
    index = _append_block(out, handles, 1)
    footer = meta + index
    return bytes(out) + footer.ljust(_FOOTER - 8, b"\0") + struct.pack("<Q", _MAGIC)


def _short_successor(key: bytes) -> bytes:
    """The shortest key that is not below this one, found in the same way as LevelDB does."""
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
        block += _varint(shared) + _varint(len(key) - shared) + _varint(len(value)) + key[shared:] + value
        before = key
    block += struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))
    handle = _varint(len(out)) + _varint(len(block))
    out += block + b"\0" + struct.pack("<I", masked(crc32c(b"\0", crc32c(block))))
    return handle


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
