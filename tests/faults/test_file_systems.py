"""File systems that lack something, such as shared memory maps or the flushing of directories, and mount points."""

from __future__ import annotations

import errno
import mmap
import os
import stat

import pretraining_runs as runs
import pytest
import torch

from fastbert.data.prepare import prepare
from fastbert.data.shards import ShardSet
from fastbert.errors import InputError
from fastbert.files import flush
from fastbert.train import checkpoint
from fastbert.train.pretrain import pretrain


@pytest.fixture
def private_maps_only(monkeypatch):
    """As FUSE's direct_io and 9p without a cache have them."""
    real = mmap.mmap

    def private_only(fileno, length, flags=mmap.MAP_SHARED, **others):
        if fileno != -1 and flags & mmap.MAP_SHARED:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
        return real(fileno, length, flags=flags, **others)

    monkeypatch.setattr(mmap, "mmap", private_only)


def test_data_on_a_file_system_without_shared_maps(private_maps_only, tmp_path):
    data = runs.prepare_data(tmp_path / "data")
    assert pretrain(runs.config(data, tmp_path / "run", steps=1)).steps == 1


def test_the_file_that_cannot_be_mapped_is_named(monkeypatch, tmp_path):
    data = runs.prepare_data(tmp_path / "data")

    def refused(*_, **__):
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))

    monkeypatch.setattr(mmap, "mmap", refused)
    with pytest.raises(OSError, match="No such device") as caught:
        ShardSet.open(data)
    assert caught.value.filename == str(data / "train" / "shard-00000.bin")


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_mount_point_is_no_directory_to_make(monkeypatch, tmp_path, overwrite):
    """It was "Device or resource busy" after all of the work, or the advice to overwrite it."""
    out = runs.prepare_data(tmp_path / "data")
    monkeypatch.setattr(os.path, "ismount", lambda path: path == out)
    with pytest.raises(InputError, match="got a mount point, which cannot be replaced: add a name to it"):
        prepare([("d", ["A sentence."])], out / "vocab.txt", out, overwrite=overwrite)


def test_directories_that_cannot_be_flushed(monkeypatch, tmp_path):
    real = os.fsync

    def files_only(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", files_only)
    path = checkpoint.save(tmp_path / "checkpoints", 1, {"w": torch.ones(3)}, {})
    assert checkpoint.latest_valid(tmp_path / "checkpoints") == (path, [])

    def refused(_descriptor):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", refused)
    with pytest.raises(OSError, match="Input/output error"):  # any other error is one
        flush(tmp_path)
