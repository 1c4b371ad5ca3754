"""An endless stream of packed batches, made ahead of the step that needs them."""

from __future__ import annotations

from collections.abc import Iterator

from torch.utils.data import DataLoader, Dataset

from ..packing import PackedBatch
from ..processes import obey_the_parent, quick_context
from . import ranks
from .pretraining import PretrainingData


class _Batches(Dataset):
    def __init__(self, data: PretrainingData, token_budget: int) -> None:
        self._data, self._token_budget = data, token_budget

    def __getitem__(self, place: tuple[int, int]) -> tuple[int, int, PackedBatch]:
        epoch, index = place
        sample_ids = self._data.batches(epoch, self._token_budget)[index]
        return epoch, index, self._data.collate(epoch, sample_ids)


def _as_it_is(item):
    return item


def _begin_worker(_number: int) -> None:
    obey_the_parent()


def make_loader(
    data: PretrainingData,
    token_budget: int,
    *,
    start: tuple[int, int] = (0, 0),
    num_workers: int = 0,
    rank: int = 0,
    world_size: int = 1,
) -> Iterator[tuple[int, int, PackedBatch]]:
    """Batches from (epoch, batch index) on, without end.

    Args:
        token_budget: the most tokens in a batch.
        start: the first batch to give; the rest follows from it, so this is all that a resume needs.
        num_workers: 0 = made in this process; more = made ahead in as many processes, the same batches in the same
            order.
        rank, world_size: of the process; ``start`` is the same in all, and each gets its share (fastbert.data.ranks).

    Yields:
        (epoch, batch index, PackedBatch).
    """
    return iter(
        DataLoader(
            _Batches(data, token_budget),
            sampler=ranks.places(lambda epoch: len(data.batches(epoch, token_budget)), start, rank, world_size),
            batch_size=None,
            num_workers=num_workers,
            multiprocessing_context=quick_context() if num_workers else None,
            collate_fn=_as_it_is,
            worker_init_fn=_begin_worker,
        )
    )
