"""Every batch of the global order goes to one rank, and a place in that order is enough to go on from."""

from __future__ import annotations

from itertools import islice

import pytest

from fastbert.data import ranks

SIZES = [5, 1, 0, 4, 7]


def batches_in(epoch: int) -> int:
    return SIZES[epoch % len(SIZES)]


def whole_order(count: int) -> list[tuple[int, int]]:
    order = [(epoch, index) for epoch in range(20) for index in range(batches_in(epoch))]
    return order[:count]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_ranks_deal_out_the_global_order(world_size):
    shares = [list(islice(ranks.places(batches_in, (0, 0), r, world_size), 12)) for r in range(world_size)]
    dealt = [place for turn in zip(*shares, strict=True) for place in turn]
    assert dealt == whole_order(12 * world_size)


def test_a_start_inside_an_epoch_and_at_its_end():
    assert list(islice(ranks.places(batches_in, (0, 3)), 4)) == [(0, 3), (0, 4), (1, 0), (3, 0)]
    assert next(ranks.places(batches_in, (0, 5))) == (1, 0)


@pytest.mark.parametrize("count", [1, 4, 5, 6, 7, 17, 18])
def test_after_is_where_the_order_goes_on(count):
    place = ranks.after(batches_in, (0, 0), count)
    assert next(ranks.places(batches_in, place)) == whole_order(count + 1)[count]


def test_another_number_of_ranks_goes_on_in_the_same_order():
    place, seen = (0, 0), []
    for world_size, turns in ((2, 3), (3, 2), (1, 4), (4, 1)):
        shares = [list(islice(ranks.places(batches_in, place, r, world_size), turns)) for r in range(world_size)]
        seen += [entry for turn in zip(*shares, strict=True) for entry in turn]
        place = ranks.after(batches_in, place, turns * world_size)
    assert seen == whole_order(len(seen))
