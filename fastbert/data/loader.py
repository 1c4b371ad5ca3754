"""An endless stream of packed batches, which are prepared ahead of the step that needs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from ..errors import FastbertError
from ..packing import PackedBatch
from ..processes import obey_the_parent, quick_context
from . import ranks
from .pretraining import PretrainingData

_Item = tuple[int, int, PackedBatch]


class _Batches(Dataset):
    def __init__(self, data: PretrainingData, token_budget: int) -> None:
        self._data, self._token_budget = data, token_budget

    def __getitem__(self, place: tuple[int, int]) -> _Item | FastbertError | OSError:
        epoch, index = place
        try:
            sample_ids = self._data.batches(epoch, self._token_budget)[index]
            return epoch, index, self._data.collate(epoch, sample_ids)
        except (FastbertError, OSError) as error:  # raised by `_as_it_is`: torch would make a worker's traceback of it
            return error


def _as_it_is(item: _Item | FastbertError | OSError) -> _Item:
    if isinstance(item, Exception):
        raise item
    return item


# A worker's tensors would go through shared memory, of which a container has 64 MB. What does not fit there is lost
# without an error in this process, which would wait for it without end. Arrays go through a pipe.
def _with_arrays(item: _Item | FastbertError | OSError) -> _Item | FastbertError | OSError:
    return item if isinstance(item, Exception) else _changed(item, torch.Tensor, torch.Tensor.numpy)


def _with_tensors(item: _Item | FastbertError | OSError) -> _Item:
    return _changed(_as_it_is(item), np.ndarray, torch.from_numpy)


def _changed(item: _Item, kind: type, change: Callable[[Any], Any]) -> _Item:
    epoch, index, batch = item
    values = {field.name: getattr(batch, field.name) for field in fields(batch)}
    return epoch, index, replace(batch, **{name: change(x) for name, x in values.items() if isinstance(x, kind)})


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
    """Yields batches without end, from a given batch on.

    Args:
        token_budget: the most tokens in a batch.
        start: (epoch, batch index) of the first batch. All later batches follow from it, so a resumed run needs nothing
            else.
        num_workers: the number of processes that prepare batches ahead; with 0, this process makes them. The batches
            and their order are the same.
        rank, world_size: those of this process; ``start`` is the same on all ranks, and each gets its share
            (fastbert.data.ranks).

    Yields:
        (epoch, batch index, PackedBatch).
    """
    loader = DataLoader(
        _Batches(data, token_budget),
        sampler=ranks.places(lambda epoch: len(data.batches(epoch, token_budget)), start, rank, world_size),
        batch_size=None,
        num_workers=num_workers,
        multiprocessing_context=quick_context() if num_workers else None,
        collate_fn=_with_arrays if num_workers else _as_it_is,
        worker_init_fn=_begin_worker,
    )
    return map(_with_tensors, loader) if num_workers else iter(loader)
