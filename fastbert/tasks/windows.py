"""Windows over a text that has more tokens than a model reads at a time."""

from __future__ import annotations

import numpy as np


def plan_windows(count: int, room: int, stride: int) -> tuple[list[int], np.ndarray]:
    """The starts of windows of at most `room` tokens over `count` tokens, and the window that owns each token.

    A token is owned by the window in which it has most context, that is the smaller of the numbers of tokens to its
    left and right; of equals the longer window, then the earlier (the rule of google-research/bert).

    Returns:
        the starts, and owners (count,) int64, indices of windows.
    """
    begins = [0]
    while begins[-1] + room < count:
        begins.append(begins[-1] + stride)
    if len(begins) == 1:
        return begins, np.zeros(count, np.int64)
    owners, best = np.zeros(count, np.int64), np.full(count, -np.inf)
    for number, begin in enumerate(begins):
        left = np.arange(min(room, count - begin))
        score = np.minimum(left, left[::-1]) + 0.01 * len(left)
        part = slice(begin, begin + len(left))
        better = score > best[part]
        owners[part][better], best[part][better] = number, score[better]
    return begins, owners
