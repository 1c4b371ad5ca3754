"""Corpora larger than memory, and many ranks: what is kept in memory, who gets what, how evenly."""

from __future__ import annotations

import tracemalloc
from itertools import islice

import numpy as np
import pytest

from fastbert.data import pairs, ranks
from fastbert.data.budget import BudgetData
from fastbert.data.config import SampleConfig
from fastbert.data.manifest import Manifest, SpecialIds
from fastbert.data.pretraining import PretrainingData
from fastbert.data.shard_writer import ShardWriter
from fastbert.data.shards import ShardSet


def write(directory, documents: int, max_tokens: int) -> ShardSet:
    """Documents of 40 sentences of 5 to 45 tokens: 40,000 tokens of a vocabulary of 1,000 in 40 documents."""
    draw, writer = np.random.default_rng(0), ShardWriter(directory, "train", 1000, max_tokens)
    for first in range(0, documents, 1000):
        count = min(1000, documents - first)
        lengths = draw.integers(5, 46, 40 * count)
        writer.add_documents(draw.integers(5, 1000, int(lengths.sum())), lengths, np.full(count, 40))
    entries = tuple(writer.close())
    manifest = Manifest(1000, SpecialIds(0, 1, 2, 3, 4), "0" * 64, {"train": entries}, writer.files)
    (directory / "manifest.json").write_text(manifest.dumps())
    return ShardSet.open(directory)


@pytest.mark.parametrize("nsp", [True, False])
def test_memory_is_less_than_the_shards(tmp_path, monkeypatch, nsp):
    """Token files are mapped, so what is held is the plan of an epoch and where sentences start.

    Measured on a million tokens, with less looked at together than in a large corpus.
    """
    write(tmp_path, 1000, 1 << 18)
    monkeypatch.setattr(pairs, "_CHUNK", 250)
    tracemalloc.start()
    try:
        shards = ShardSet.open(tmp_path)
        data = PretrainingData(shards, SampleConfig(max_seqlen=128, nsp=nsp))
        batches = data.batches(0, 4096)
        for ids in batches[:20]:
            data.collate(0, ids)
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    print(
        f"{held / shards.num_tokens:.2f} bytes held for a token of the corpus, {peak / shards.num_tokens:.2f} at most"
    )
    on_disk = sum(tokens.nbytes for tokens in shards.tokens)
    assert on_disk == 2 * shards.num_tokens
    assert peak < 1.0 * on_disk
    assert held < 0.6 * on_disk


@pytest.mark.parametrize("nsp", [True, False])
def test_the_plan_does_not_depend_on_what_is_looked_at_together(small_numbered, monkeypatch, nsp):
    def plan():
        return PretrainingData(small_numbered.shards, SampleConfig(max_seqlen=64, nsp=nsp)).plan(1)

    whole = plan()
    for chunk in (1, 30, 500):
        monkeypatch.setattr(pairs, "_CHUNK", chunk)
        parts = plan()
        for name in ("a", "b", "a_cut", "b_cut", "is_random", "lengths"):
            assert np.array_equal(getattr(parts, name), getattr(whole, name)), (chunk, name)


def dealt(data: PretrainingData, budget: int, world_size: int, epoch: int = 0) -> list[list[np.ndarray]]:
    """What each rank computes of an epoch."""
    batches = data.batches(epoch, budget)
    count = len(batches)
    shares = []
    for rank in range(world_size):
        places = ranks.places(lambda _: count, (epoch, 0), rank, world_size)
        shares.append([batches[index] for e, index in islice(places, -(-count // world_size)) if e == epoch])
    return shares


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
@pytest.mark.parametrize("max_tokens", [3_000, 10**9], ids=["many shards", "one shard"])
def test_each_sample_once_over_all_ranks_and_nobody_starves(tmp_path, world_size, max_tokens):
    """Batches are dealt, not shards: with fewer shards than ranks, or uneven ones, all have as many batches."""
    shards = write(tmp_path, 60, max_tokens)
    data = PretrainingData(shards, SampleConfig(max_seqlen=64))
    shares = dealt(data, 512, world_size)
    seen = np.concatenate([ids for share in shares for ids in share])
    assert sorted(seen.tolist()) == list(range(len(data.lengths(0))))
    counts = [len(share) for share in shares]
    assert max(counts) - min(counts) <= 1
    assert min(counts) > 10


def balance(tokens: list[int], world_size: int) -> tuple[float, float]:
    """The load imbalance when batches of these sizes are dealt out: the tokens of the rank that has most, divided by
    the mean over ranks; of all steps together, and the mean over single steps, in which all wait for the largest."""
    steps = len(tokens) // world_size
    dealt = np.asarray(tokens[: steps * world_size], dtype=np.float64).reshape(steps, world_size)
    whole = dealt.sum(0)
    return float(whole.max() / whole.mean()), float((dealt.max(1) / dealt.mean(1)).mean())


def test_balance_by_hand():
    whole, step = balance([10, 8, 6, 8, 99], 2)  # ranks have 16 and 16; steps are 10 to 9 and 8 to 7
    assert whole == 1.0
    assert step == pytest.approx((10 / 9 + 8 / 7) / 2)


@pytest.mark.parametrize("world_size", [2, 8])
def test_ranks_have_the_same_amount_of_work(tmp_path, world_size):
    """Over an epoch within 1 % as batches come; packed to the budget, in each step too."""
    data = PretrainingData(write(tmp_path, 1000, 1 << 20), SampleConfig(max_seqlen=128))
    lengths = data.lengths(0)
    whole, step = balance([int(lengths[ids].sum()) for ids in data.batches(0, 4096)], world_size)
    packed_whole, packed_step = balance(
        [int(lengths[ids].sum()) for ids in BudgetData(data, 4096).batches(0)], world_size
    )
    print(f"{world_size} ranks: {whole:.4f} and {step:.4f} a step; packed {packed_whole:.4f} and {packed_step:.4f}")
    assert whole <= 1.01
    assert packed_whole <= 1.01
    assert packed_step <= 1.01
    assert packed_step < step
