"""An endless stream of packed batches, made ahead of the step that needs them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator

from torch.utils.data import DataLoader, Dataset

from ..packing import PackedBatch
from . import ranks
from .encode import process_context
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


def _leave_signals_to_the_parent(_worker: int) -> None:
    """Ctrl-C in a terminal, its end and that of a batch job reach every process; a worker that died of one would take
    the run with it before it is saved. The parent's own SIGTERM still ends a worker: Python sends it at exit, and
    waits."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if not hasattr(signal, "sigtimedwait"):  # macOS does not tell who sent a signal
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    threading.Thread(target=_end_with_the_parent, daemon=True).start()


def _end_with_the_parent() -> None:
    parent = multiprocessing.parent_process()
    while parent.is_alive():
        caught = signal.sigtimedwait({signal.SIGTERM}, 2.0)
        if caught is not None and caught.si_pid == parent.pid:
            break
    os._exit(0)


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
            # Not the default of every Python: under "forkserver" a SIGTERM to all processes would end the server, and
            # with it the workers.
            multiprocessing_context=process_context() if num_workers else None,
            collate_fn=_as_it_is,
            worker_init_fn=_leave_signals_to_the_parent,
        )
    )
