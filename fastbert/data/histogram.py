"""Fills packs of a fixed number of tokens, from a histogram of sample lengths.

The idea is that of Krell et al., "Efficient sequence packing without cross-contamination" (2021): lengths are taken
from the longest to the shortest, and each goes into the fullest pack that still has room for it. Packs with the same
content are kept once, with their number, so the work grows with the number of lengths and not with that of samples.

``python -m fastbert.data.histogram LENGTHS.csv`` prints how full the packs become.
"""

from __future__ import annotations

import argparse
import csv
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..errors import DataError, InputError


@dataclass(frozen=True)
class Packs:
    """``count`` packs with the same ``content``: (length, number of samples), the longest first."""

    count: int
    content: tuple[tuple[int, int], ...]

    @property
    def tokens(self) -> int:
        """The number of tokens in each of these packs."""
        return sum(length * times for length, times in self.content)

    @property
    def samples(self) -> int:
        """The number of samples in each of these packs."""
        return sum(times for _, times in self.content)


def pack_histogram(histogram: Sequence[int] | np.ndarray, capacity: int) -> list[Packs]:
    """Packs samples, the longest first, each into the fullest pack that has room.

    Args:
        histogram: entry L is the number of samples of L tokens; entry 0 must be 0.
        capacity: the number of tokens of a pack.

    Returns:
        packs that together hold every sample once; always the same for the same histogram.

    Raises:
        InputError: a sample is longer than a pack, or has no tokens.
    """
    histogram = np.asarray(histogram)
    lengths = np.flatnonzero(histogram)
    if len(lengths) and (lengths[0] == 0 or lengths[-1] > capacity):
        raise InputError(f"samples must have 1 to {capacity} tokens to be packed, got {lengths[0]} to {lengths[-1]}")
    by_room: dict[int, list[Packs]] = defaultdict(list)
    rooms: list[int] = []  # the keys of by_room, ascending

    def keep(packs: Packs, room: int) -> None:
        if not by_room[room]:
            insort(rooms, room)
        by_room[room].append(packs)

    for length in map(int, lengths[::-1]):
        left = int(histogram[length])
        while left:
            at = bisect_left(rooms, length)
            if at == len(rooms):
                packs, room = Packs(-(-left // (capacity // length)), ()), capacity
            else:
                room = rooms[at]
                packs = by_room[room].pop()
                if not by_room[room]:
                    rooms.pop(at)
            times = min(room // length, left)
            filled = min(packs.count, left // times)
            # Packs of an existing group that are not filled are kept; those of a new group are created again if needed.
            if packs.content and packs.count > filled:
                keep(Packs(packs.count - filled, packs.content), room)
            keep(Packs(filled, (*packs.content, (length, times))), room - times * length)
            left -= filled * times
    return [packs for room in rooms for packs in by_room[room]]


def efficiency(packs: Sequence[Packs], capacity: int) -> float:
    """The share of the packs' capacity that is filled with tokens."""
    count = sum(p.count for p in packs)
    return sum(p.count * p.tokens for p in packs) / (count * capacity) if count else 1.0


def read_lengths(path: Path) -> np.ndarray:
    """Reads a histogram from a CSV with the columns length and sequences. Raises DataError if it is not one."""
    try:
        with open(path, newline="") as file:
            rows = [(int(row["length"]), int(row["sequences"])) for row in csv.DictReader(file)]
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: expected columns length and sequences of whole numbers, got {error}") from error
    if not rows or min(min(row) for row in rows) < 0:
        raise DataError(f"{path}: expected rows of lengths and counts that are not negative")
    histogram = np.zeros(max(length for length, _ in rows) + 1, dtype=np.int64)
    for length, sequences in rows:
        histogram[length] += sequences
    return histogram


def main() -> None:
    """Prints how full packs become with the lengths in a CSV file."""
    parser = argparse.ArgumentParser(prog="python -m fastbert.data.histogram", description="How full packs become.")
    parser.add_argument("lengths", type=Path, help="CSV with columns length and sequences")
    parser.add_argument("--capacity", type=int, default=512, help="tokens in a pack")
    options = parser.parse_args()
    histogram = read_lengths(options.lengths)
    packs = pack_histogram(histogram, options.capacity)
    count, samples = sum(p.count for p in packs), int(histogram.sum())
    mean = float((np.arange(len(histogram)) * histogram).sum()) / max(samples, 1)
    print(f"{samples:,} samples of {mean:.1f} tokens on average in {count:,} packs of {options.capacity}")
    print(f"{samples / max(count, 1):.3f} samples a pack, at most {max((p.samples for p in packs), default=0)}")
    print(f"efficiency {100 * efficiency(packs, options.capacity):.3f} %")


if __name__ == "__main__":
    main()
