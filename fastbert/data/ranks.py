"""Which batches of the run a process computes: one global order, dealt out like cards.

The order of batches is a pure function of (seed, epoch, token budget). Of n processes, the one of rank r takes batches
r, r + n, r + 2n, ... from the place where the run stands, across the ends of epochs. So a place in the global order is
all that a resume needs, and another number of processes goes on in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import numpy as np

Place = tuple[int, int]
"""(epoch, batch index): the batch that comes next. The index may be one past the epoch's last."""


def places(
    batches_in: Callable[[int], int], start: Place = (0, 0), rank: int = 0, world_size: int = 1
) -> Iterator[Place]:
    """Yields the places of the batches that a rank computes, without end.

    Args:
        batches_in: how many batches an epoch has.
        start: where the run stands, the same for all ranks.
    """
    return islice(_all(batches_in, start), rank, None, world_size)


def _all(batches_in: Callable[[int], int], start: Place) -> Iterator[Place]:
    epoch, index = start
    while True:
        for place in range(index, batches_in(epoch)):
            yield epoch, place
        epoch, index = epoch + 1, 0


def after(batches_in: Callable[[int], int], start: Place, count: int) -> Place:
    """Where a run stands ``count`` >= 1 batches, over all ranks, after ``start``."""
    epoch, index = next(islice(_all(batches_in, start), count - 1, None))
    return epoch, index + 1


def balance(tokens: Sequence[int], world_size: int) -> tuple[float, float]:
    """Tokens of the rank that has most, over the mean of all, when batches of so many tokens are dealt out.

    Returns:
        of the whole, and the mean over single steps, in each of which all wait for the largest.
    """
    steps = len(tokens) // world_size
    dealt = np.asarray(tokens[: steps * world_size], dtype=np.float64).reshape(steps, world_size)
    whole = dealt.sum(0)
    return float(whole.max() / whole.mean()), float((dealt.max(1) / dealt.mean(1)).mean())
