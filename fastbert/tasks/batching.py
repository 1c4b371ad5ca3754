"""Which examples go into which batch: pure functions of lengths, seed and epoch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..errors import InputError


def budget_batches(lengths: Sequence[int], token_budget: int, order: Sequence[int] | None = None) -> list[np.ndarray]:
    """Cuts examples, taken in `order`, into batches of at most token_budget tokens each.

    Raises:
        InputError: one example alone is over the budget.
    """
    batches, batch, tokens = [], [], 0
    for index in range(len(lengths)) if order is None else order:
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
    """One epoch's batches of example numbers, shuffled: the same for the same seed, epoch and sizes.

    By rows (the last batch may be smaller), or by tokens where a budget is given.
    """
    order = np.random.Generator(np.random.PCG64([seed, epoch])).permutation(len(lengths))
    if token_budget is not None:
        return budget_batches(lengths, token_budget, order)
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


def evaluation_batches(lengths: Sequence[int], token_budget: int) -> list[np.ndarray]:
    """Batches of like lengths, the longest first, so that a batch that does not fit in memory fails at once."""
    order = np.argsort(-np.asarray(lengths), kind="stable")
    return budget_batches(lengths, max(token_budget, max(lengths, default=0)), order)
