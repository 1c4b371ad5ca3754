"""Data on another file system: the same batches, every byte checked, no more on the disk than the limit."""

from __future__ import annotations

import os
import pickle
from dataclasses import fields
from itertools import islice

import pytest
import torch

from fastbert.data import remote
from fastbert.data.config import SampleConfig
from fastbert.data.loader import make_loader
from fastbert.data.pretraining import PretrainingData
from fastbert.data.shards import ShardSet
from fastbert.errors import DataError, InputError

fsspec = pytest.importorskip("fsspec")


@pytest.fixture
def elsewhere(small_numbered):
    """The address of a copy in memory:// of a corpus of several shards; what is fetched is counted."""
    system, home = fsspec.filesystem("memory"), small_numbered.shards.directory
    system.store.clear()
    for path in home.rglob("*"):
        if path.is_file():
            system.pipe(f"/bucket/data/{path.relative_to(home).as_posix()}", path.read_bytes())
    yield "memory://bucket/data"
    system.store.clear()


@pytest.fixture
def fetched(monkeypatch):
    from fastbert.data.remote import RemoteFiles

    real, names = RemoteFiles._bring, []

    def bring(self, name, path, entry):
        names.append(name)
        return real(self, name, path, entry)

    monkeypatch.setattr(RemoteFiles, "_bring", bring)
    return names


def assert_same_batches(ours, theirs, count=12, **options):
    for got, wanted in islice(zip(make_loader(ours, 2048, **options), make_loader(theirs, 2048), strict=True), count):
        assert got[:2] == wanted[:2]
        for field in fields(got[2]):
            mine, other = getattr(got[2], field.name), getattr(wanted[2], field.name)
            assert torch.equal(mine, other) if isinstance(other, torch.Tensor) else mine == other


def test_batches_are_those_of_the_directory(elsewhere, small_numbered, tmp_path, fetched):
    config = SampleConfig(max_seqlen=128)
    shards = ShardSet.open(elsewhere, cache=tmp_path)
    assert len(shards.tokens) > 3
    assert not [name for name in fetched if name.endswith(".bin")], "shards wait until they are needed"
    assert_same_batches(PretrainingData(shards, config), PretrainingData(small_numbered.shards, config))
    once = [name for name in fetched if name.endswith(".bin")]
    assert len(once) == len(set(once)) == len(shards.tokens)
    # Another opening, by a worker or by the next run, fetches nothing.
    fetched.clear()
    again = pickle.loads(pickle.dumps(shards))
    assert_same_batches(PretrainingData(again, config), PretrainingData(small_numbered.shards, config), 3)
    assert not fetched


def test_workers_read_it_too(elsewhere, small_numbered, tmp_path):
    """Forked ones see this process's memory://."""
    config = SampleConfig(max_seqlen=128)
    data = PretrainingData(ShardSet.open(elsewhere, cache=tmp_path), config)
    assert_same_batches(data, PretrainingData(small_numbered.shards, config), 6, num_workers=1)


def on_disk(directory) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*.bin"))


def test_the_cache_stays_within_its_limit(elsewhere, small_numbered, tmp_path, fetched):
    """With room for two shards of five every batch is still right, and the disk never holds more."""
    sizes = [tokens.nbytes for tokens in small_numbered.shards.tokens]
    limit = 2 * max(sizes) + 10
    assert sum(sizes) > limit
    shards, config = ShardSet.open(elsewhere, cache=tmp_path, cache_limit=limit), SampleConfig(max_seqlen=128)
    for first in range(0, shards.num_sentences, 7):
        end = int(shards.document_starts[shards.document_starts > first][0])
        assert (shards.gather(first, end) == small_numbered.shards.gather(first, end)).all()
        assert on_disk(tmp_path) <= limit
    before = shards.gather(0, 1)
    expected = before.copy()
    assert_same_batches(PretrainingData(shards, config), PretrainingData(small_numbered.shards, config), 4)
    assert (before == expected).all(), "a view outlives the file that it is of"
    assert on_disk(tmp_path) <= limit
    assert len([name for name in fetched if name.endswith(".bin")]) > len(sizes)
    # Maps of files that were removed hold their room on the disk: they are closed too.
    assert sum(tokens.nbytes for tokens in shards.tokens._open.values()) <= limit


def test_the_one_used_longest_ago_makes_room(elsewhere, small_numbered, tmp_path):
    sizes = [tokens.nbytes for tokens in small_numbered.shards.tokens]
    shards = ShardSet.open(elsewhere, cache=tmp_path, cache_limit=sum(sizes[:3]) + 10)
    for number in range(3):
        shards.tokens[number]
    held = sorted(tmp_path.rglob("*.bin"))
    assert [path.name for path in held] == [f"shard-0000{n}.bin" for n in range(3)]
    for age, path in zip((300, 100, 200), held, strict=True):  # the second was used last
        os.utime(path, (path.stat().st_atime - age, path.stat().st_mtime - age))
    shards.tokens[3]
    left = {path.name for path in tmp_path.rglob("*.bin")}
    assert "shard-00000.bin" not in left
    assert {"shard-00001.bin", "shard-00003.bin"} <= left


def test_a_shard_that_another_run_uses_is_not_the_one_used_longest_ago(elsewhere, small_numbered, tmp_path):
    limit = sum(tokens.nbytes for tokens in small_numbered.shards.tokens[:3]) + 10
    for number in range(3):
        ShardSet.open(elsewhere, cache=tmp_path, cache_limit=limit).tokens[number]
    for age, path in zip((300, 100, 200), sorted(tmp_path.rglob("*.bin")), strict=True):
        os.utime(path, (path.stat().st_atime - age, path.stat().st_mtime - age))
    again = ShardSet.open(elsewhere, cache=tmp_path, cache_limit=limit)
    again.tokens[0]
    again.tokens[3]
    left = {path.name for path in tmp_path.rglob("*.bin")}
    assert "shard-00002.bin" not in left
    assert {"shard-00000.bin", "shard-00003.bin"} <= left


def test_other_prepared_data_beside_the_cache_are_left_alone(elsewhere, small_numbered, tmp_path):
    """Someone keeps data of their own where the downloaded ones go: they were removed as the ones used longest ago."""
    own = tmp_path / "wiki" / "train" / "shard-00000.bin"
    own.parent.mkdir(parents=True)
    own.write_bytes(bytes(100))
    os.utime(own, (0, 0))
    limit = max(tokens.nbytes for tokens in small_numbered.shards.tokens) + 10
    shards = ShardSet.open(elsewhere, cache=tmp_path, cache_limit=limit)
    for number in range(len(shards.tokens)):
        shards.tokens[number]
    assert own.read_bytes() == bytes(100)


@pytest.mark.parametrize("value", [None, ""])
def test_an_empty_variable_is_no_cache_in_the_working_directory(tmp_path, monkeypatch, value):
    monkeypatch.setattr(remote.Path, "home", lambda: tmp_path)
    monkeypatch.delenv("FASTBERT_CACHE", raising=False)
    if value is not None:
        monkeypatch.setenv("FASTBERT_CACHE", value)
    assert remote._default_cache() == tmp_path / ".cache" / "fastbert"


def test_a_shard_over_the_limit_is_refused(elsewhere, tmp_path):
    shards = ShardSet.open(elsewhere, cache=tmp_path, cache_limit=100)
    with pytest.raises(DataError, match=r"shard-00000\.bin: expected shards within the cache's 100 bytes, got \d+"):
        shards.gather(0, 1)


@pytest.mark.parametrize("damage", ["altered", "cut", "longer", "gone"])
def test_damage_elsewhere_is_named_and_leaves_nothing(elsewhere, tmp_path, damage):
    system, name = fsspec.filesystem("memory"), "/bucket/data/train/shard-00000.bin"
    good = system.cat(name)
    bad = {"altered": good[:-1] + bytes([good[-1] ^ 1]), "cut": good[:-2], "longer": good + b"\0\0"}.get(damage)
    system.rm(name)
    if bad is not None:
        system.pipe(name, bad)
    shards = ShardSet.open(elsewhere, cache=tmp_path)
    with pytest.raises(DataError, match=r"memory://bucket/data/train/shard-00000\.bin: expected") as caught:
        shards.gather(0, 1)
    assert "\n" not in str(caught.value)
    assert not [path.name for path in tmp_path.rglob("*") if "shard-00000.bin" in path.name]
    system.pipe(name, good)
    assert len(shards.gather(0, 1))


def test_a_transfer_that_breaks_once_is_repeated(elsewhere, small_numbered, tmp_path, fetched, monkeypatch):
    from fastbert.data.remote import RemoteFiles

    counted, calls = RemoteFiles._bring, []

    def flaky(self, name, path, entry):
        calls.append(name)
        return "expected an answer, got none" if len(calls) == 1 else counted(self, name, path, entry)

    shards = ShardSet.open(elsewhere, cache=tmp_path)
    monkeypatch.setattr(RemoteFiles, "_bring", flaky)
    assert (shards.gather(0, 1) == small_numbered.shards.gather(0, 1)).all()
    assert len(calls) == 2


def test_a_damaged_file_of_the_cache_is_fetched_again(elsewhere, small_numbered, tmp_path):
    ShardSet.open(elsewhere, cache=tmp_path).gather(0, 1)
    [path] = tmp_path.rglob("shard-00000.bin")
    path.write_bytes(path.read_bytes()[:-2])  # a machine that lost its power
    assert (ShardSet.open(elsewhere, cache=tmp_path).gather(0, 1) == small_numbered.shards.gather(0, 1)).all()


def test_addresses_that_cannot_be_used(tmp_path):
    with pytest.raises(InputError, match="nosuch://x: expected an address"):
        ShardSet.open("nosuch://x", cache=tmp_path)
    with pytest.raises(DataError, match=r"memory://nothing/manifest\.json: expected the manifest"):
        ShardSet.open("memory://nothing", cache=tmp_path)


def test_a_manifest_cannot_lead_out_of_the_cache(elsewhere, tmp_path):
    system, name = fsspec.filesystem("memory"), "/bucket/data/manifest.json"
    text = system.cat(name).replace(b"train/shard-00000.bin", b"../../../shard-0.bin")
    system.rm(name)
    system.pipe(name, text)
    with pytest.raises(DataError, match=r"manifest\.json: expected names of shard and tokenizer files"):
        ShardSet.open(elsewhere, cache=tmp_path)


def test_a_run_from_elsewhere_is_the_run_from_the_directory(tmp_path):
    """With its held-out documents, and the tokenizer in the model's directory."""
    import pretraining_runs as runs

    from fastbert.train.pretrain import pretrain

    local, system = runs.prepare_data(tmp_path / "data"), fsspec.filesystem("memory")
    system.store.clear()
    system.put(str(local), "/elsewhere/", recursive=True)
    [root] = {path.rsplit("/", 1)[0] for path in system.find("/elsewhere") if path.endswith("/manifest.json")}
    cache = str(tmp_path / "cache")
    pretrain(runs.config(local, tmp_path / "a", steps=6), quiet=True)
    config = runs.config(local, tmp_path / "b", steps=6, cache=cache, cache_gb=0.001)
    config.data = f"memory:/{root}"
    pretrain(config, quiet=True)
    runs.assert_same_run(tmp_path / "b", tmp_path / "a", 6)
    assert (tmp_path / "b" / "model" / "vocab.txt").read_bytes() == (local / "vocab.txt").read_bytes()
    system.store.clear()
