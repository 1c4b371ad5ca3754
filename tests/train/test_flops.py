"""The FLOP formula where BERT's own shapes do not test it, and the measurement of the machine."""

from __future__ import annotations

import csv
import time

import numpy as np
import pytest
import torch

from fastbert import BertConfig, _native
from fastbert.train.flops import batch_flops, measured_peak, sequence_flops


def test_wikipedia_phase_two_mix(shared_data):
    """BERT-large on the lengths of Wikipedia's phase 2, mean 255.8, with 15 % predicted: 500.1 GFLOP a sequence."""
    with open(shared_data / "lengths" / "wikipedia_512.csv", newline="") as file:
        counts = {int(row["length"]): int(row["sequences"]) for row in csv.DictReader(file)}
    total = sum(counts.values())
    assert sum(s * n for s, n in counts.items()) / total == pytest.approx(255.8, abs=0.05)
    config = BertConfig.large()
    mean = sum(n * sequence_flops(config, s, 0.15 * s) for s, n in counts.items()) / total
    assert mean / 1e9 == pytest.approx(500.1, abs=0.05)


def test_every_size_counts():
    """By hand, from the shapes of the matrix products of one layer and the heads; no two sizes are in BERT's ratio."""
    h, f, v, s, n, layers = 6, 10, 7, 5, 2, 3
    config = BertConfig(
        hidden_size=h, intermediate_size=f, vocab_size=v, num_hidden_layers=layers, num_attention_heads=2
    )
    projections = 4 * 2 * s * h * h
    feed_forward = 2 * (2 * s * h * f)
    scores_and_mix = 2 * (2 * s * s * h)
    heads = 2 * n * h * h + 2 * n * h * v
    assert sequence_flops(config, s, n) == 3 * (layers * (projections + feed_forward + scores_and_mix) + heads)


@pytest.mark.parametrize("array", [torch.tensor, np.array])
def test_int32_lengths_do_not_overflow(array):
    lengths = array([40_000, 50_000], dtype=torch.int32 if array is torch.tensor else np.int32)
    config = BertConfig.base()
    expected = sequence_flops(config, 40_000, 3) + sequence_flops(config, 50_000, 4)
    assert batch_flops(config, lengths, 7) == pytest.approx(expected, rel=1e-12)


def test_measuring_is_quick_and_leaves_the_random_numbers_alone():
    state = torch.get_rng_state()
    began = time.monotonic()
    peak, how = measured_peak(torch.device("cpu"), torch.float32)
    # 0.3 s of products and one that is under way, on a machine that others use too.
    assert time.monotonic() - began < 3
    assert torch.equal(torch.get_rng_state(), state)
    assert peak > 0
    assert how.startswith("measured, float32 ")


def test_the_peak_is_the_larger_of_a_product_and_of_multiply_adds(monkeypatch):
    """torch's products leave half of some processors idle, and no step may come to more than all of one."""
    monkeypatch.setattr(_native, "loop_rate", lambda what: {"fp32": 1e17, "bf16": 2e17}.get(what, 0.0))
    assert measured_peak(torch.device("cpu"), torch.float32) == (1e17, "measured, float32 multiply-adds in registers")
    assert measured_peak(torch.device("cpu"), torch.bfloat16)[0] == 2e17
    monkeypatch.setattr(_native, "loop_rate", lambda what: 0.0)
    peak, how = measured_peak(torch.device("cpu"), torch.float32)
    assert 0 < peak < 1e15
    assert how == "measured, float32 1024 x 1024 product"


@pytest.mark.skipif(_native.why_missing() is not None, reason=str(_native.why_missing()))
def test_a_loop_that_the_level_lacks_has_no_rate():
    rates = {what: _native.loop_rate(what, 0.005) for what in _native.LOOPS}
    assert rates["fp32"] > 1e8
    assert (rates["bf16 tile"] > 0) == (rates["int8 tile"] > 0) == _native.isa().startswith("amx")


def test_rounds_in_which_other_processes_had_the_cores_do_not_count(monkeypatch):
    """They find half of what the processor does; an MFU came to 120 % so. A round is shorter than a slice of Linux'
    scheduler, and there are many: here one in ten has the cores for itself."""

    rounds = []

    class Probe:
        def probe(self, _what, iterations):
            slow = 1.0 if len(rounds) % 10 == 5 else 2.0
            rounds.append(slow * iterations / 1e9)
            return 1e3 * iterations, rounds[-1]

    monkeypatch.setattr(_native, "_module", Probe())
    assert _native.loop_rate("fp32") == 1e12
    assert len(rounds) > 50
    assert max(rounds) < 3e-3


def test_a_makers_figure_is_for_whole_cards_of_that_kind(monkeypatch):
    """A slice of one, or a slower card of the name, is measured."""

    class Measured(Exception): ...

    def measure(_device):
        raise Measured

    monkeypatch.setattr(torch, "Generator", measure)
    for name in ("NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA A100-SXM4-80GB", "NVIDIA A100-PCIE-40GB"):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda _, name=name: name)
        assert measured_peak(torch.device("cuda"), torch.bfloat16)[1].startswith("stated for ")
    for name in ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA H100 PCIe", "NVIDIA H200 NVL", "NVIDIA L4"):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda _, name=name: name)
        with pytest.raises(Measured):
            measured_peak(torch.device("cuda"), torch.bfloat16)
