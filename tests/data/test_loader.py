"""The stream of batches: the same whatever makes it, resumable at any place, without end."""

from __future__ import annotations

from dataclasses import fields
from itertools import islice

import pytest
import torch

from fastbert.data.config import SampleConfig
from fastbert.data.loader import make_loader
from fastbert.data.pretraining import PretrainingData
from fastbert.errors import DataError

BUDGET = 4096


@pytest.fixture
def data(small_numbered):
    return PretrainingData(small_numbered.shards, SampleConfig(max_seqlen=128))


def assert_same(got, wanted):
    assert len(got) == len(wanted)
    for (epoch, index, batch), (wanted_epoch, wanted_index, wanted_batch) in zip(got, wanted, strict=True):
        assert (epoch, index) == (wanted_epoch, wanted_index)
        for field in fields(batch):
            mine, other = getattr(batch, field.name), getattr(wanted_batch, field.name)
            assert torch.equal(mine, other) if isinstance(other, torch.Tensor) else mine == other, field.name


def direct(data, epochs):
    return [
        (epoch, index, data.collate(epoch, ids))
        for epoch in range(epochs)
        for index, ids in enumerate(data.batches(epoch, BUDGET))
    ]


def test_the_stream_is_epoch_after_epoch(data):
    wanted = direct(data, 3)
    assert 10 < len(wanted) < 60
    assert {epoch for epoch, _, _ in wanted} == {0, 1, 2}
    assert_same(list(islice(make_loader(data, BUDGET), len(wanted))), wanted)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_resuming_anywhere_gives_what_would_have_come(data, num_workers):
    wanted = direct(data, 3)
    last = len(data.batches(0, BUDGET)) - 1
    # The last batch of an epoch, one past it (saved after the last step), and the middle of the next.
    for start in [(0, last), (0, last + 1), (1, 2)]:
        rest = [item for item in wanted if item[:2] >= start]
        loader = make_loader(data, BUDGET, start=start, num_workers=num_workers)
        assert_same(list(islice(loader, len(rest))), rest)


def test_a_rank_gets_its_share(data):
    wanted = direct(data, 2)
    for rank in range(3):
        share = wanted[rank + 1 :: 3]
        loader = make_loader(data, BUDGET, start=(0, 1), rank=rank, world_size=3)
        assert_same(list(islice(loader, len(share))), share)


def test_workers_make_the_same_batches(data):
    wanted = list(islice(make_loader(data, BUDGET), 20))
    assert wanted[-1][0] >= 1
    for workers in (1, 2):
        assert_same(list(islice(make_loader(data, BUDGET, num_workers=workers), 20)), wanted)


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize(
    "error", [DataError("a shard: cut off"), OSError(5, "Input/output error", "a shard")], ids=repr
)
def test_an_error_is_the_same_from_a_worker(data, monkeypatch, num_workers, error):
    """torch would put the worker's traceback into its message."""

    def fail(*_args):
        raise error

    monkeypatch.setattr(PretrainingData, "collate", fail)
    with pytest.raises(type(error)) as raised:
        next(make_loader(data, BUDGET, num_workers=num_workers))
    assert str(raised.value) == str(error)


def test_workers_need_no_shared_memory(data, monkeypatch):
    """In a container it may be as small as 64 MB, and a batch that does not fit there would be waited for for ever."""

    def full(*_args):
        raise RuntimeError("unable to write to file: No space left on device (28)")

    monkeypatch.setattr(torch.UntypedStorage, "_share_fd_cpu_", full)  # workers are forks of this process
    monkeypatch.setattr(torch.UntypedStorage, "_share_filename_cpu_", full)
    wanted = direct(data, 1)
    assert_same(list(islice(make_loader(data, BUDGET, num_workers=2), len(wanted))), wanted)
