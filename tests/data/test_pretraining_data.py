"""A sample is a pure function of (seed, epoch, sample id); batches hold every sample once and fill their budget."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch

from fastbert.data.config import SampleConfig
from fastbert.data.manifest import Manifest, SpecialIds
from fastbert.data.pretraining import PretrainingData
from fastbert.data.shards import ShardSet
from fastbert.errors import DataError, InputError


def sequences(batch) -> list[tuple]:
    """Each sample of a batch by itself: ids, types, chosen positions in the sample, labels, next-sentence label."""
    bounds, at = batch.cu_seqlens.tolist(), batch.mlm_positions
    out = []
    for number, (first, last) in enumerate(itertools.pairwise(bounds)):
        inside = (at >= first) & (at < last)
        out.append(
            (
                batch.input_ids[first:last].tolist(),
                batch.token_type_ids[first:last].tolist(),
                (at[inside] - first).tolist(),
                batch.mlm_labels[inside].tolist(),
                None if batch.nsp_labels is None else int(batch.nsp_labels[number]),
            )
        )
    return out


def epoch_of(data: PretrainingData, epoch: int) -> list[tuple]:
    return sequences(data.collate(epoch, np.arange(len(data.lengths(epoch)))))


CONFIGS = {
    "pairs": SampleConfig(max_seqlen=64),
    "runs": SampleConfig(max_seqlen=64, nsp=False),
    "limited": SampleConfig(max_seqlen=64, max_predictions=3, seed=7),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_sample_does_not_depend_on_its_batch(small_numbered, name):
    data = PretrainingData(small_numbered.shards, CONFIGS[name])
    wanted = epoch_of(data, 3)
    assert len(wanted) > 200
    # Another instance, other epochs in between, other batches in another order.
    other = PretrainingData(ShardSet.open(small_numbered.shards.directory), CONFIGS[name])
    order = np.random.default_rng(0).permutation(len(wanted))
    for part in np.array_split(order, 9):
        other.collate(int(part[0]) % 3, part[:2] % len(other.lengths(int(part[0]) % 3)))
        assert sequences(other.collate(3, part)) == [wanted[i] for i in part]
    assert sequences(other.collate(3, order[:1])) == [wanted[order[0]]]


def test_the_shapes_and_types_of_a_batch(small_numbered):
    data = PretrainingData(small_numbered.shards, CONFIGS["pairs"])
    batch = data.collate(0, np.array([5, 2, 9]))
    for tensor in (batch.input_ids, batch.token_type_ids, batch.position_ids, batch.mlm_positions, batch.mlm_labels):
        assert tensor.dtype == torch.int64
    assert batch.cu_seqlens.dtype == torch.int32
    assert batch.nsp_labels.dtype == torch.int64
    assert batch.cu_seqlens.diff().tolist() == data.lengths(0)[[5, 2, 9]].tolist()
    assert batch.max_seqlen == data.lengths(0)[[5, 2, 9]].max()
    assert PretrainingData(small_numbered.shards, CONFIGS["runs"]).collate(0, np.array([1])).nsp_labels is None


def test_special_tokens_that_a_tokenizer_adds_are_no_words(small_numbered):
    shards = ShardSet.open(small_numbered.shards.directory)
    special = dataclasses.replace(shards.manifest.special_ids, others=(6, 9))
    shards.manifest = dataclasses.replace(shards.manifest, special_ids=special)
    data = PretrainingData(shards, CONFIGS["pairs"])
    ids = np.arange(12)
    assert ids[~data.is_maskable(ids)].tolist() == [0, 1, 2, 3, 4, 6, 9]


_CHILD = """
import hashlib, pickle, sys
import numpy as np
data = pickle.load(open(sys.argv[1], "rb"))
batch = data.collate(2, np.arange(len(data.lengths(2))))
print(hashlib.sha256(b"".join(getattr(batch, name).numpy().tobytes() for name in
    ("input_ids", "token_type_ids", "mlm_positions", "mlm_labels", "nsp_labels"))).hexdigest())
"""


def test_another_process_makes_the_same_samples(small_numbered, tmp_path):
    data = PretrainingData(small_numbered.shards, CONFIGS["pairs"])
    batch = data.collate(2, np.arange(len(data.lengths(2))))
    names = ("input_ids", "token_type_ids", "mlm_positions", "mlm_labels", "nsp_labels")
    wanted = hashlib.sha256(b"".join(getattr(batch, name).numpy().tobytes() for name in names)).hexdigest()
    (tmp_path / "data.pickle").write_bytes(pickle.dumps(data))
    child = subprocess.run(
        [sys.executable, "-c", _CHILD, str(tmp_path / "data.pickle")], capture_output=True, text=True, timeout=120
    )
    assert child.stdout.strip() == wanted, child.stderr


def test_pickling_keeps_the_path_alone(numbered):
    data = PretrainingData(numbered.shards, CONFIGS["pairs"])
    data.plan(0)
    content = pickle.dumps(data)
    assert len(content) < 2_000
    again = pickle.loads(content)
    assert sequences(again.collate(1, np.array([4, 0]))) == sequences(data.collate(1, np.array([4, 0])))


def test_epochs_and_seeds_differ(small_numbered):
    data = PretrainingData(small_numbered.shards, CONFIGS["pairs"])
    other = PretrainingData(small_numbered.shards, SampleConfig(max_seqlen=64, seed=1))
    first = {str(sample) for sample in epoch_of(data, 0)}
    for again in (epoch_of(data, 1), epoch_of(other, 0), epoch_of(other, 1)):
        assert not first & {str(sample) for sample in again}
    # The same run of sentences is masked anew in each epoch: of 15 % few are chosen twice.
    plan = data.plan(0)
    data._plan = lambda _version: plan
    assert data.plan(1) is plan, "the same samples in both epochs"
    chosen = [set(data.collate(epoch, np.arange(len(plan))).mlm_positions.tolist()) for epoch in range(2)]
    assert len(chosen[0] & chosen[1]) < 0.3 * len(chosen[0])


@pytest.mark.parametrize("duplication", [1, 3])
def test_static_samples_come_back_after_so_many_epochs(small_numbered, duplication):
    config = SampleConfig(max_seqlen=64, duplication=duplication)
    data = PretrainingData(small_numbered.shards, config)
    epochs = [epoch_of(data, epoch) for epoch in range(2 * duplication + 1)]
    for epoch, samples in enumerate(epochs):
        assert samples == epochs[epoch % duplication]
    assert len({str(samples) for samples in epochs}) == duplication
    # Version by version the samples are those of the dynamic epochs; only their order goes on changing.
    dynamic = PretrainingData(small_numbered.shards, SampleConfig(max_seqlen=64))
    assert epochs[duplication - 1] == epoch_of(dynamic, duplication - 1)
    orders = [np.concatenate(data.batches(epoch, 2048)).tolist() for epoch in (0, duplication)]
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1])


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("budget", [64, 65, 500, 2048, 10**9])
def test_batches_hold_each_sample_once_within_the_budget(small_numbered, budget, shuffle):
    data = PretrainingData(small_numbered.shards, CONFIGS["pairs"])
    lengths, batches = data.lengths(1), data.batches(1, budget, shuffle)
    flat = np.concatenate(batches)
    assert sorted(flat.tolist()) == list(range(len(lengths)))
    assert (flat.tolist() == list(range(len(lengths)))) is not shuffle
    assert all(len(batch) for batch in batches)
    assert all(lengths[batch].sum() <= budget for batch in batches)
    assert data.collate(1, batches[-1]).num_tokens == lengths[batches[-1]].sum()
    again = PretrainingData(small_numbered.shards, CONFIGS["pairs"]).batches(1, budget, shuffle)
    assert [batch.tolist() for batch in again] == [batch.tolist() for batch in batches]


@pytest.mark.parametrize("max_seqlen", [64, 128])
def test_budgets_are_filled(numbered, max_seqlen):
    budget = 32 * max_seqlen
    data = PretrainingData(numbered.shards, SampleConfig(max_seqlen=max_seqlen))
    batches = data.batches(0, budget)
    fill = [data.lengths(0)[batch].sum() / budget for batch in batches]
    assert len(fill) > 30
    assert min(fill[:-1]) >= 0.95


def test_a_budget_below_one_sample_is_refused(small_numbered):
    data = PretrainingData(small_numbered.shards, CONFIGS["pairs"])
    with pytest.raises(InputError, match=r"^token_budget must hold .* max_seqlen 64 tokens, got 63$"):
        data.batches(0, 63)


def test_a_split_without_text_is_refused(tmp_path):
    """Otherwise the loader would look for a first batch for ever."""
    manifest = Manifest(100, SpecialIds(0, 1, 2, 3, 4), "0" * 64, {"train": ()}, {})
    (tmp_path / "manifest.json").write_text(manifest.dumps())
    for nsp in (True, False):
        data = PretrainingData(ShardSet.open(tmp_path), SampleConfig(nsp=nsp))
        with pytest.raises(DataError, match=r"expected at least one sentence in split .train., got none$"):
            data.batches(0, 1000)


@pytest.mark.parametrize("first_text", [True, False])
def test_a_shard_that_is_cut_off_is_seen_before_a_sample_is_read_from_it(number_corpus, first_text):
    """Of a pair whose other text is in another shard. To read what is missing would end the process."""
    shards = number_corpus([[10] * 20] * 40, max_tokens=1000).shards
    data = PretrainingData(shards, SampleConfig(max_seqlen=64))
    plan, end = data.plan(0), shards.manifest.splits["train"][0].sentences
    of_a, of_b = (segment[:, 0] < end for segment in (plan.a, plan.b))
    [sample, *_] = np.flatnonzero(of_a & ~of_b if first_text else of_b & ~of_a)
    assert data.collate(0, np.array([sample])).num_sequences == 1
    os.truncate(next(shards.directory.rglob("shard-00000.bin")), 8)
    with pytest.raises(DataError, match=r"shard-00000\.bin: expected a file that stays as it is"):
        data.collate(0, np.array([sample]))
