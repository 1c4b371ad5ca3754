"""Batches of one shape: every sample once an epoch, what is added never counts, the data is that of any other batch."""

from __future__ import annotations

import dataclasses
import itertools
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from static_batches import real

from fastbert import PackedBatch
from fastbert.data.budget import BatchShape, BudgetData, _round_up, fill_up
from fastbert.data.config import SampleConfig
from fastbert.data.loader import make_loader
from fastbert.data.pretraining import PretrainingData
from fastbert.errors import InputError

CONFIGS = {
    "pairs": SampleConfig(max_seqlen=64),
    "runs": SampleConfig(max_seqlen=16, nsp=False, short_seq_prob=0.9),
    "limited": SampleConfig(max_seqlen=48, max_predictions=3, seed=7),
}


@pytest.fixture(scope="module", params=CONFIGS)
def data(request, small_numbered) -> PretrainingData:
    return PretrainingData(small_numbered.shards, CONFIGS[request.param])


@pytest.mark.parametrize("budget", [64, 500, 1024])
def test_every_sample_once_an_epoch_in_batches_of_one_shape(data, budget):
    packed = BudgetData(data, budget)
    shape = packed.shape
    for epoch in (0, 1, 5):
        batches = packed.batches(epoch)
        seen = np.sort(np.concatenate(batches))
        assert seen.tolist() == list(range(len(data.lengths(epoch))))
        for ids in batches[:4] + batches[-2:]:
            batch = packed.collate(epoch, ids)
            assert batch.num_tokens == budget == shape.tokens
            assert batch.num_sequences == shape.sequences
            assert batch.mlm_positions.numel() == batch.mlm_labels.numel() == shape.predictions
            assert batch.max_seqlen == shape.max_seqlen == data.config.max_seqlen
            lengths = batch.cu_seqlens.diff()
            assert int(lengths.min()) >= 0
            assert int(lengths.max()) <= shape.max_seqlen
            assert int(batch.cu_seqlens[-1]) == budget
            assert batch.mlm_positions.unique().numel() == shape.predictions
            assert int(batch.position_ids.max()) < shape.max_seqlen


def test_what_was_added_can_be_taken_away_again(data):
    packed = BudgetData(data, 500)
    for ids in packed.batches(3):
        plain, filled = data.collate(3, ids), packed.collate(3, ids)
        again = real(filled)
        for field in dataclasses.fields(plain):
            wanted, got = getattr(plain, field.name), getattr(again, field.name)
            same = torch.equal(wanted, got) if isinstance(wanted, torch.Tensor) else wanted == got
            assert same, field.name
        assert (filled.num_real_tokens, filled.num_labels) == (plain.num_tokens, plain.num_labels)
        assert filled.num_pairs == plain.num_pairs
        assert bool((filled.mlm_labels[plain.num_labels :] == -100).all())
        if plain.nsp_labels is not None:
            assert bool((filled.nsp_labels[plain.num_sequences :] == -100).all())


def test_batches_are_a_function_of_seed_epoch_and_budget(small_numbered):
    def batches(seed, epoch, budget):
        config = SampleConfig(max_seqlen=64, seed=seed)
        return [b.tolist() for b in BudgetData(PretrainingData(small_numbered.shards, config), budget).batches(epoch)]

    first = batches(0, 2, 512)
    assert batches(0, 2, 512) == first
    for other in (batches(1, 2, 512), batches(0, 3, 512), batches(0, 2, 640)):
        assert other != first
    # Samples that come again in every epoch come with others, and in another order.
    static = SampleConfig(max_seqlen=64, duplication=1)
    packed = BudgetData(PretrainingData(small_numbered.shards, static), 512)
    one, two = (sorted(sorted(b.tolist()) for b in packed.batches(epoch)) for epoch in (0, 1))
    assert sorted(itertools.chain(*one)) == sorted(itertools.chain(*two))
    assert not any(b in two for b in one)


def test_pads_are_few_and_batches_alike(numbered):
    data = PretrainingData(numbered.shards, SampleConfig(max_seqlen=128, short_seq_prob=0.5))
    packed = BudgetData(data, 4096)
    batches, lengths = packed.batches(0), data.lengths(0)
    # The last round of packs is not full: with n batches that alone may cost 1 / n.
    assert packed.efficiency() > 0.99 - 1 / len(batches)
    sizes = np.array([len(b) for b in batches])
    assert sizes.max() - sizes.min() <= 0.25 * sizes.mean()
    means = np.array([lengths[b].mean() for b in batches])
    assert means.std() < 0.1 * lengths.mean()


def test_what_a_later_epoch_needs_more_goes_into_more_batches(small_numbered):
    data = PretrainingData(small_numbered.shards, SampleConfig(max_seqlen=64))
    packed = BudgetData(data, 512)
    tight = packed.shape
    packed._shape = BatchShape(tight.tokens, 11, 90, tight.max_seqlen)
    batches = packed.batches(0)
    assert np.sort(np.concatenate(batches)).tolist() == list(range(len(data.lengths(0))))
    for ids in batches:
        assert packed.collate(0, ids).num_sequences == 11


def of_lengths(*epochs: list[int], budget: int = 512, **settings) -> BudgetData:
    """Batches of samples of these lengths in each epoch, of at most 64 tokens if ``settings`` say nothing else."""
    config = SampleConfig(**{"max_seqlen": 64, **settings})
    shards = SimpleNamespace(manifest=SimpleNamespace(special_ids=SimpleNamespace(pad=0)))
    lengths = [np.array(epoch) for epoch in epochs]
    data = SimpleNamespace(
        config=config, shards=shards, check_budget=lambda _: None, lengths=lambda epoch: lengths[epoch]
    )
    return BudgetData(data, budget)


@pytest.mark.parametrize(
    ("dealt", "shape", "wanted"),
    [
        # Eleven of 60 are too many tokens for one batch, and the three that go are one more.
        ([range(11)], (512, 40, 200), [3, 8]),
        # Six short ones and the eight sequences that pads would be are three too many.
        ([range(11, 17)], (512, 11, 200), [3, 3]),
        # A batch of 60 has at most 9 predictions, three of them are too many for 20.
        ([range(3), range(3, 6)], (512, 40, 20), [2, 2, 2]),
        ([range(1)], (512, 40, 20), [1]),
    ],
    ids=["tokens", "sequences", "predictions", "fits"],
)
def test_each_limit_of_a_shape_moves_samples_to_more_batches(dealt, shape, wanted):
    packed = of_lengths([60] * 11 + [4] * 6)
    packed._shape, packed._deal = BatchShape(*shape, 64), lambda epoch: [np.array(ids) for ids in dealt]
    batches = packed.batches(0)
    assert sorted(map(len, batches)) == wanted
    assert sorted(itertools.chain(*batches)) == sorted(itertools.chain(*dealt))


def test_batches_come_in_an_order_of_their_own_each_epoch_and_seed():
    """Dealt, the first have the largest packs; a rank would get those alone."""
    orders = set()
    for seed in (0, 1):
        packed = of_lengths(*[[64] * 20] * 2, seed=seed)
        packed._deal = lambda epoch: [np.array([i]) for i in range(20)]
        for epoch in (0, 1):
            order = tuple(int(ids[0]) for ids in packed.batches(epoch))
            assert sorted(order) == list(range(20))
            orders.add(order)
    assert len(orders | {tuple(range(20))}) == 5


def test_what_is_packed_together_is_drawn_anew_each_epoch():
    """Neighbours in the corpus are of one document."""
    packed = of_lengths(*[[16] * 40] * 2, budget=64)
    one, two = ({tuple(sorted(ids.tolist())) for ids in packed.batches(epoch)} for epoch in (0, 1))
    assert {len(ids) for ids in one | two} == {4}
    assert not one & two
    assert not any(ids[3] - ids[0] == 3 for ids in one | two)


def test_a_shape_is_a_little_more_than_the_first_epoch_needs():
    assert [_round_up(number) for number in (0, 7, 8, 640)] == [8, 8, 16, 656]
    assert of_lengths([48] * 40, budget=480, max_predictions=3).shape == BatchShape(480, 16, 32, 64)
    # Nearly every token is predicted, and none twice.
    assert of_lengths([128] * 8, budget=1024, max_seqlen=128, objective="causal").shape.predictions == 1024
    # The only sample of the first is short, and a later one as long as it may be.
    packed = of_lengths([5], [64] * 9)
    assert packed.shape == BatchShape(512, 16, 16, 64)
    assert [len(ids) for ids in packed.batches(1)] == [1] * 9
    assert (packed.efficiency(0), packed.efficiency(1)) == (5 / 512, 64 / 512)


def test_in_a_loader_and_in_another_process(small_numbered):
    data = BudgetData(PretrainingData(small_numbered.shards, SampleConfig(max_seqlen=64)), 512)
    count = len(data.batches(0))
    here = make_loader(data, 512, start=(0, count - 1))
    there = make_loader(pickle.loads(pickle.dumps(data)), 512, start=(0, count - 1), num_workers=1)
    for _ in range(3):
        (epoch, index, batch), (epoch2, index2, batch2) = next(here), next(there)
        assert (epoch, index) == (epoch2, index2)
        assert torch.equal(batch.input_ids, batch2.input_ids)
        assert batch.real_tokens == batch2.real_tokens


def test_what_does_not_fit(data):
    with pytest.raises(InputError, match="token_budget"):
        BudgetData(data, data.config.max_seqlen - 1)
    batch = data.collate(0, np.arange(5))
    with pytest.raises(InputError, match="was expected to hold"):
        fill_up(batch, BatchShape(batch.num_tokens, 4, 500, 64), 0)
    for short in ((batch.num_tokens - 1, 20, 500), (batch.num_tokens, 20, batch.num_labels - 1)):
        with pytest.raises(InputError, match="was expected to hold"):
            fill_up(batch, BatchShape(*short, 64), 0)
    with pytest.raises(InputError, match="token_budget of 512"):
        BudgetData(data, 512).batches(0, 500)


def test_pads_are_sequences_of_their_own():
    batch = PackedBatch.from_sequences([[1, 2, 3]], [[0, 1, 1]], nsp_labels=torch.tensor([1]))
    with torch.device("meta"):  # torch's default is not the batch's device
        filled = fill_up(batch, BatchShape(10, 5, 0, 4), 7)
    assert filled.input_ids.tolist() == [1, 2, 3, *[7] * 7]
    assert filled.token_type_ids.tolist() == [0, 1, 1, *[0] * 7]
    assert filled.position_ids.tolist() == [0, 1, 2, 0, 1, 2, 3, 0, 1, 2]
    assert filled.cu_seqlens.tolist() == [0, 3, 7, 10, 10, 10]
    assert filled.nsp_labels.tolist() == [1, -100, -100, -100, -100]
    again = real(filled)
    assert (again.input_ids.tolist(), again.nsp_labels.tolist(), again.mlm_labels) == ([1, 2, 3], [1], None)
    fill_up(batch, BatchShape(10, 3, 0, 4), 7)
    with pytest.raises(InputError, match="expected to hold 3 tokens, 1 sequences"):
        fill_up(batch, BatchShape(10, 2, 0, 4), 7)  # seven pads are two sequences
    for tokens, sequences in ((7, 2), (3, 1)):  # four are one, none are none
        assert fill_up(batch, BatchShape(tokens, sequences, 0, 4), 7).num_sequences == sequences
