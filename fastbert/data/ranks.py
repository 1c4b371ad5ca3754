"""Which batches of the run a process computes: the batches of one global order are dealt out in turn.

The order of batches is a pure function of (seed, epoch, token budget). Of n processes, rank r takes the batches r,
r + n, r + 2n, ... from the run's current place on, across the ends of epochs. So a resumed run needs only its place in
the global order, and it may have another number of processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

Place = tuple[int, int]
"""(epoch, batch index): the batch that comes next. The index may be one past the epoch's last."""


def places(
    batches_in: Callable[[int], int], start: Place = (0, 0), rank: int = 0, world_size: int = 1
) -> Iterator[Place]:
    """Yields the places of the batches that a rank computes, without end.

    Args:
        batches_in: gives the number of batches of an epoch.
        start: the run's current place, the same for all ranks.
    """
    return islice(_all(batches_in, start), rank, None, world_size)


def _all(batches_in: Callable[[int], int], start: Place) -> Iterator[Place]:
    epoch, index = start
    while True:
        for place in range(index, batches_in(epoch)):
            yield epoch, place
        epoch, index = epoch + 1, 0


def after(batches_in: Callable[[int], int], start: Place, count: int) -> Place:
    """The place of a run ``count`` >= 1 batches, over all ranks, after ``start``."""
    epoch, index = next(islice(_all(batches_in, start), count - 1, None))
    return epoch, index + 1
