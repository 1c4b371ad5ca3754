"""Packs hold every sample once, overflow never, and are as full as the published figures."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import numpy as np
import pytest

from fastbert.data.histogram import Packs, efficiency, pack_histogram, read_lengths
from fastbert.errors import DataError, InputError


def held(packs: list[Packs]) -> Counter:
    found = Counter()
    for pack in packs:
        for length, times in pack.content:
            found[length] += times * pack.count
    return found


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("capacity", [40, 97, 640])
def test_every_sample_is_in_one_pack_and_no_pack_overflows(seed, capacity):
    counts = np.random.default_rng(seed).integers(0, 30, 41)
    counts[0] = 0
    packs = pack_histogram(counts, capacity)
    assert held(packs) == Counter({length: int(n) for length, n in enumerate(counts) if n})
    assert all(pack.count > 0 and pack.tokens <= capacity for pack in packs)


def test_by_hand():
    """Three of 6, two of 4, three of 3 into packs of 10: 6+4, 6+4, 6+3, 3+3."""
    histogram = [0, 0, 0, 3, 2, 0, 3]
    packs = pack_histogram(histogram, 10)
    assert {pack.content: pack.count for pack in packs} == {((6, 1), (4, 1)): 2, ((6, 1), (3, 1)): 1, ((3, 2),): 1}
    assert efficiency(packs, 10) == pytest.approx(35 / 40)


def greedy(histogram: list[int], capacity: int) -> list[list[int]]:
    """The rule sample by sample: the longest that is left, into the fullest pack that has room."""
    packs: list[list[int]] = []
    for length in range(len(histogram) - 1, 0, -1):
        for _ in range(histogram[length]):
            fitting = [p for p in packs if sum(p) + length <= capacity]
            if fitting:
                max(fitting, key=sum).append(length)
            else:
                packs.append([length])
    return packs


@pytest.mark.parametrize("seed", range(5))
def test_as_full_as_sample_by_sample(seed):
    histogram = [0, *np.random.default_rng(seed).integers(0, 9, 19).tolist()]
    packs = pack_histogram(histogram, 23)
    assert sum(p.count for p in packs) == len(greedy(histogram, 23))


@pytest.mark.parametrize("bad", [[1, 0], [0] * 11 + [1]])
def test_lengths_that_no_pack_takes(bad):
    with pytest.raises(InputError, match="1 to 10 tokens"):
        pack_histogram(bad, 10)


def test_no_samples():
    assert pack_histogram([0, 0], 10) == []


def test_a_file_that_is_none(tmp_path):
    path = tmp_path / "lengths.csv"
    path.write_text("length,count\n3,4\n")
    with pytest.raises(DataError, match="columns length and sequences"):
        read_lengths(path)


def test_wikipedia(shared_data):
    path = shared_data / "lengths" / "wikipedia_512.csv"
    packs = pack_histogram(read_lengths(path), 512)
    assert efficiency(packs, 512) >= 0.996
    done = subprocess.run(
        [sys.executable, "-m", "fastbert.data.histogram", str(path)], capture_output=True, text=True, check=True
    )
    assert float(done.stdout.split("efficiency")[1].split("%")[0]) >= 99.6
