"""Batches of examples: pure functions that cover everything once and stay in their budget."""

import numpy as np
import pytest

from fastbert.errors import InputError
from fastbert.tasks.batching import budget_batches, evaluation_batches, training_batches

LENGTHS = list(np.random.default_rng(0).integers(3, 64, 500))


@pytest.mark.parametrize("budget", [None, 256])
def test_training_batches_cover_all_once_and_repeat(budget):
    def make(seed, epoch):
        return training_batches(LENGTHS, seed=seed, epoch=epoch, batch_size=32, token_budget=budget)

    batches = make(1, 0)
    assert sorted(np.concatenate(batches)) == list(range(len(LENGTHS)))
    assert all(np.array_equal(a, b) for a, b in zip(batches, make(1, 0), strict=True))
    assert not np.array_equal(np.concatenate(batches), np.concatenate(make(1, 1)))
    assert not np.array_equal(np.concatenate(batches), np.concatenate(make(2, 0)))
    if budget is None:
        assert [len(b) for b in batches] == [32] * 15 + [20]
    else:
        assert all(sum(LENGTHS[i] for i in b) <= budget for b in batches)


def test_a_budget_may_be_filled():
    assert [list(b) for b in budget_batches([3, 5, 2, 8, 1], 8, range(5))] == [[0, 1], [2], [3], [4]]


def test_evaluation_batches_are_longest_first():
    batches = evaluation_batches(LENGTHS, 300)
    flat = np.concatenate(batches)
    assert sorted(flat) == list(range(len(LENGTHS)))
    assert [LENGTHS[i] for i in flat] == sorted(LENGTHS, reverse=True)
    assert all(sum(LENGTHS[i] for i in b) <= 300 for b in batches)


def test_a_sequence_over_the_budget_is_an_error():
    with pytest.raises(InputError, match="the token budget of 4 is below one sequence of 5 tokens"):
        budget_batches([3, 5], 4, range(2))
    assert [list(b) for b in evaluation_batches([3, 5], 4)] == [[1], [0]]
    # And nothing else may be over it: one long row of a file must not make the others' batches long.
    assert [list(b) for b in evaluation_batches([30, 100, 30, 9, 30], 40)] == [[1], [0], [2], [4, 3]]
    for budget in (0, -1):
        with pytest.raises(InputError, match=f"token_budget must be at least 1, got {budget}"):
            evaluation_batches([3, 5], budget)
