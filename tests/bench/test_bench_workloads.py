"""The workloads: token counts worked by hand, and batches that are what they say."""

import numpy as np
import pytest

from fastbert.bench import workloads
from fastbert.bench.workloads import Workload, lognormal_lengths, make_batch
from fastbert.config import BertConfig

BY_NAME = {w.name: w for w in (*workloads.INFERENCE, *workloads.TRAINING)}


@pytest.mark.parametrize(
    ("name", "tokens", "padded"), [("W1", 1024, 1024), ("W3", 32, 32), ("W4", 2048, 2048), ("T1", 1024, 1024)]
)
def test_full_workloads_have_no_pads(name, tokens, padded):
    assert (BY_NAME[name].num_tokens, BY_NAME[name].padded_tokens) == (tokens, padded)


def test_lognormal_lengths_by_hand():
    # Quantiles 1/8, 3/8, 5/8, 7/8 of the normal distribution are -1.1503, -0.3186, 0.3186, 1.1503; times sigma 0.6 and
    # exponentiated, times 30: 15.04, 24.78, 36.32, 59.82.
    assert sorted(lognormal_lengths(4, 30, 0.6, 4, 256)) == [15, 25, 36, 60]
    assert sorted(lognormal_lengths(4, 30, 0.6, 20, 40)) == [20, 25, 36, 40]


def test_w2_is_thirty_two_sentences_of_median_thirty():
    lengths = sorted(BY_NAME["W2"].lengths)
    assert len(lengths) == 32
    # The median of a log-normal distribution is its parameter, its mean 30 exp(0.36 / 2) = 35.9.
    assert 29 <= (lengths[15] + lengths[16]) / 2 <= 31
    assert sum(lengths) == pytest.approx(32 * 35.9, rel=0.03)
    assert lengths[0] >= 4
    assert lengths[-1] <= 256
    assert BY_NAME["W2"].padded_tokens == 32 * lengths[-1]


def test_t2_is_twice_every_fourth_length_of_w2():
    lengths = sorted(BY_NAME["W2"].lengths)
    assert BY_NAME["T2"].lengths == tuple(min(128, 2 * n) for n in lengths[2::4])
    assert len(BY_NAME["T2"].lengths) == 8


def test_a_batch_keeps_what_the_lengths_say():
    batch = make_batch(Workload("x", "", "inference", (3, 5)), 50)
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]
    assert (batch["input_ids"][batch["attention_mask"] == 0] == 0).all()
    assert batch["token_type_ids"].tolist() == [[0, 1, 1, 0, 0], [0, 0, 1, 1, 1]]
    assert batch["input_ids"].max() < 50


def test_fifteen_percent_of_every_sequence_is_predicted():
    workload = Workload("x", "", "training", (20, 2, 100))
    batch = make_batch(workload, 5000)
    predicted = batch["labels"] != -100
    # 0.15 x 20 = 3; 0.15 x 2 = 0.3, but at least one; 0.15 x 100 = 15.
    assert predicted.sum(1).tolist() == [3, 1, 15]
    assert workloads.num_predicted(workload.lengths) == 19
    assert (batch["attention_mask"][predicted] == 1).all()
    assert (batch["input_ids"][predicted] == 103).all()
    assert batch["next_sentence_label"].shape == (3,)
    again = make_batch(workload, 5000)
    assert all(np.array_equal(batch[name], again[name]) for name in batch)


def test_flops_by_hand():
    config = BertConfig(hidden_size=4, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8, vocab_size=100)
    # A layer and a token: 8 x 16 (q, k, v, o) + 4 x 4 x 8 (MLP) = 256; attention 4 x 4 x (9 + 25) = 544 a layer.
    inference = Workload("x", "", "inference", (3, 5))
    assert workloads.flops(config, inference) == 2 * (256 * 8 + 544)
    # Two predicted tokens, each 2 x 16 + 2 x 4 x 100 = 832; a step is three times the forward pass.
    training = Workload("x", "", "training", (3, 5))
    assert workloads.flops(config, training) == 3 * (2 * (256 * 8 + 544) + 2 * 832)
