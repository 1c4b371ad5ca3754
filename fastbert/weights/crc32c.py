"""CRC-32C (Castagnoli), the checksum of TensorFlow's files: numpy computes many blocks at once, and their checksums are
combined by linearity.

zlib's CRC has another polynomial, and byte by byte in Python the 440 MB of a BERT-base would take minutes.
"""

from __future__ import annotations

from functools import cache

import numpy as np

_POLYNOMIAL = np.uint32(0x82F63B78)  # reflected
_STRETCH = 1024
_MASK_DELTA = 0xA282EAD8


@cache
def _table() -> np.ndarray:
    """(256,) uint32: the effect of each byte on the register."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> np.uint32(1)) ^ _POLYNOMIAL, table >> np.uint32(1))
    return table.astype(np.uint32)


def _run(register: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Feeds byte columns (n, lanes) to the registers (lanes,), one column a step."""
    table = _table()
    for column in columns:
        register = table[(register ^ column) & np.uint32(0xFF)] ^ (register >> np.uint32(8))
    return register


@cache
def _skip(length: int) -> np.ndarray:
    """(32,) uint32: the image of each bit of a register after ``length`` zero bytes; a power of 2 times `_STRETCH`."""
    if length > _STRETCH:
        half = _skip(length // 2)
        return _apply(half, half)
    bits = np.uint32(1) << np.arange(32, dtype=np.uint32)
    return _run(bits, np.zeros((length, 1), dtype=np.uint32))


def _apply(images: np.ndarray, registers: np.ndarray) -> np.ndarray:
    out = np.zeros_like(registers)
    for bit in range(32):
        out ^= np.where(registers >> np.uint32(bit) & np.uint32(1), images[bit], np.uint32(0))
    return out


def crc32c(data, start: int = 0) -> int:
    """The CRC-32C of bytes (anything with a buffer); ``start`` is the CRC of the data before them."""
    data = np.frombuffer(data, dtype=np.uint8)
    register = np.array([~np.uint32(start)], dtype=np.uint32)
    whole = data.size // _STRETCH
    # Powers of two, the longest first, so that halves can be combined level by level.
    while whole:
        lanes = min(1 << (whole.bit_length() - 1), 1 << 14)
        stretch = data[: lanes * _STRETCH].reshape(lanes, _STRETCH)
        registers = _run(np.zeros(lanes, dtype=np.uint32), np.ascontiguousarray(stretch.T))
        length = _STRETCH
        while registers.size > 1:
            registers = _apply(_skip(length), registers[0::2]) ^ registers[1::2]
            length *= 2
        register = _apply(_skip(length), register) ^ registers
        data = data[lanes * _STRETCH :]
        whole = data.size // _STRETCH
    return int(~_run(register, data[:, None])[0])


def masked(crc: int) -> int:
    """A checksum as TensorFlow and LevelDB store it: rotated, since CRCs of data that contain CRCs are weak."""
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF
