"""Which examples go into which batch, and which rows are held out: pure functions of lengths, seed and epoch."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from ..data.chunks import batches_by_length
from ..errors import InputError

_log = logging.getLogger("fastbert")


def budget_batches(lengths: Sequence[int], token_budget: int, order: Sequence[int] | np.ndarray) -> list[np.ndarray]:
    """Divides examples into batches of at most token_budget tokens.

    Args:
        lengths: the number of tokens of each example.
        token_budget: the most tokens in a batch.
        order: indices of examples, in the order in which they are taken.

    Returns:
        int64 arrays of example indices.

    Raises:
        InputError: an example alone has more tokens than the budget.
    """
    batches, batch, tokens = [], [], 0
    for index in order:
        if lengths[index] > token_budget:
            raise InputError(f"the token budget of {token_budget} is below one sequence of {lengths[index]} tokens")
        if tokens + lengths[index] > token_budget:
            batches.append(np.array(batch))
            batch, tokens = [], 0
        batch.append(int(index))
        tokens += lengths[index]
    return [*batches, np.array(batch)] if batch else batches


def training_batches(
    lengths: Sequence[int], *, seed: int, epoch: int, batch_size: int, token_budget: int | None = None
) -> list[np.ndarray]:
    """The batches of one epoch, as int64 arrays of example indices: shuffled, the same for the same arguments.

    Batches have ``batch_size`` examples (the last may have fewer), or at most ``token_budget`` tokens if that is given.
    """
    order = np.random.Generator(np.random.PCG64([seed, epoch])).permutation(len(lengths))
    if token_budget is not None:
        return budget_batches(lengths, token_budget, order)
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


def evaluation_batches(lengths: Sequence[int], token_budget: int) -> list[np.ndarray]:
    """`batches_by_length` of examples.

    Raises:
        InputError: the budget is below 1.
    """
    if token_budget < 1:
        raise InputError(f"token_budget must be at least 1, got {token_budget}")
    return batches_by_length(lengths, token_budget)


def evenly(rows: Sequence, most: int | None) -> list:
    """At most ``most`` rows, evenly spaced over the whole file, since many files are sorted by source or by label."""
    if most is None or most >= len(rows):
        return list(rows)
    return [rows[index * len(rows) // most] for index in range(most)]


def hold_out(rows: Sequence, share: float, sources: Callable[[Any], Sequence[Hashable | None]]) -> tuple[list, list]:
    """Divides rows into those to train on and a random share to evaluate on. The split is the same in every call, so
    that runs with different seeds can be compared. Both parts keep their order.

    All rows of one source go to the same side. If there are so few sources that one has on average more than the share,
    the next smaller units are kept together instead, in the end single rows; a warning says so.

    Args:
        rows: all rows.
        share: between 0 and 1.
        sources: maps a row to what it was taken from, as `Task.sources`.

    Returns:
        the rows to train on, and those to evaluate on.

    Raises:
        InputError: one of the two would be empty.
    """
    count = round(share * len(rows)) if 0 < share < 1 else 0
    if not 0 < count < len(rows):
        raise InputError(f"dev_share must leave rows on both sides, got {share:g} of {len(rows)} rows")
    groups = _groups(rows, share, sources)
    chosen: set[int] = set()
    for index in np.random.Generator(np.random.PCG64(0)).permutation(len(groups)):
        size = len(groups[index])
        # A group is held out if that brings the number closer to the share, and some training rows remain.
        if len(chosen) + size / 2 <= count and len(chosen) + size < len(rows):
            chosen.update(groups[index])
    kept = [row for index, row in enumerate(rows) if index not in chosen]
    return kept, [row for index, row in enumerate(rows) if index in chosen]


def _groups(rows: Sequence, share: float, sources: Callable[[Any], Sequence[Hashable | None]]) -> list[list[int]]:
    """The indices of rows that are kept together, in the order of their first rows."""
    of_rows = list(map(sources, rows))
    for level in range(len(of_rows[0])):
        groups: dict[Hashable, list[int]] = defaultdict(list)
        for index, found in enumerate(of_rows):
            groups[next(((n, found[n]) for n in range(level, len(found)) if found[n] is not None), index)].append(index)
        if len(groups) * share >= 1 or len(groups) == len(rows):
            return list(groups.values())
        if all(found[level] is None for found in of_rows):
            continue
        _log.warning(
            "dev_share: %d different sources or texts are too few to hold out %g of them, so that rows of the same one "
            "are trained on and evaluated on",
            len(groups),
            share,
        )
    return [[index] for index in range(len(rows))]
