"""Random numbers that are pure functions of integer keys, for whole arrays at once.

Every choice in the data (pairs, masks, order) is a function of (seed, epoch, stream, item), so the data are the same in
a resumed run, with another number of workers or in another order of reading, and no generator state is saved.
"""

from __future__ import annotations

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


def mix(x: np.ndarray) -> np.ndarray:
    """A step of SplitMix64 (Steele et al., OOPSLA 2014), element by element: uint64 -> well-mixed uint64."""
    with np.errstate(over="ignore"):
        x = x + _GOLDEN
        x = (x ^ (x >> np.uint64(30))) * _MIX[0]
        x = (x ^ (x >> np.uint64(27))) * _MIX[1]
    return x ^ (x >> np.uint64(31))


def key(*parts: int | np.ndarray) -> np.ndarray:
    """Folds integers (or arrays of them, broadcast) into one uint64 key each."""
    folded = np.uint64(0)
    for part in parts:
        folded = mix(folded ^ np.asarray(part).astype(np.uint64))
    return folded


def uniform(keys: np.ndarray) -> np.ndarray:
    """Keys -> float64 in [0, 1)."""
    return (mix(keys) >> np.uint64(11)) * 2.0**-53


def generator(*parts: int) -> np.random.Generator:
    """A numpy generator whose whole stream is a function of these integers."""
    return np.random.Generator(np.random.Philox(key=int(key(*parts))))
