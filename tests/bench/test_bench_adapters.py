"""Every adapter computes the model: small sizes, one round, held to float64 like in a real run."""

import pytest

from fastbert import _native
from fastbert.bench import kernels, models, peers, variants, workloads
from fastbert.bench.peers.probe import SAME_LOOPS, Probe, peaks
from fastbert.bench.session import Session, SessionPlan
from fastbert.bench.workloads import Workload
from fastbert.config import BertConfig

CONFIG = BertConfig(
    hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128, vocab_size=300,
    max_position_embeddings=32,
)  # fmt: skip


def _run(kind, chosen, monkeypatch):
    # Rounds are not what is tested: a turn of one run is enough.
    monkeypatch.setattr("fastbert.bench.session._ROUND_SECONDS", 0.0)
    # The second finds the weights as they are, although a training has moved them on the first.
    workloads = tuple(Workload(name, "mixed", kind, (7, 24, 3)) for name in "XY")
    plan = SessionPlan(kind, "base", workloads, chosen, rounds=2, threads=1, config=CONFIG, probe=False)
    session = Session(plan).run()
    assert len(session.rows) == 2 * len(chosen)
    return {row.variant.name: row for row in sorted(session.rows, key=lambda row: row.status != "ok")}


def _chosen(kind, peers):
    return [v for v in variants.choose(kind, peers, quick=False, preload=None) if not v.slow_start]


def _named(kind, *names):
    return [v for v in _chosen(kind, ()) if v.name in names]


@pytest.mark.parametrize(
    ("kind", "peer"),
    [
        ("inference", "transformers sdpa fp32"),
        pytest.param("training", "transformers fp32", marks=pytest.mark.slow),  # test_bench_session.py has a training
    ],
)
def test_ours_and_transformers_agree_with_the_truth(kind, peer, monkeypatch):
    pytest.importorskip("transformers")
    ours = "fastbert reference fp32" if _native.why_missing() else "fastbert fp32"
    rows = _run(kind, _named(kind, ours, peer), monkeypatch)
    assert {name: (row.status, row.reason) for name, row in rows.items()} == dict.fromkeys((ours, peer), ("ok", None))
    assert [len(row.seconds) for row in rows.values()] == [2, 2]


@pytest.mark.parametrize("peer", ["fastbert_", "transformers_"])
def test_a_timed_step_of_a_training_drops_out_and_the_compared_one_does_not(peer, tmp_path):
    pytest.importorskip("transformers")
    models.make_directory("base", tmp_path, CONFIG)
    adapter = peers.load(f".{peer}:Training")(tmp_path, "fp32", 1)
    adapter.prepare(workloads.make_batch(Workload("X", "mixed", "training", (7, 24, 3)), CONFIG.vocab_size))
    compared = [adapter.answer()["loss"] for _ in range(2)]
    assert compared[0] == compared[1]
    adapter.step()
    assert all(module.training for module in adapter.model.modules())
    adapter.answer()
    assert not any(module.training for module in adapter.model.modules())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["inference", "training"])
def test_every_variant_on_torch(kind, monkeypatch):
    pytest.importorskip("transformers")
    chosen = [v for v in _chosen(kind, ("reference", "eager", "sdpa")) if v.missing is None]
    for name, row in _run(kind, chosen, monkeypatch).items():
        assert row.status == "ok", f"{name}: {row.reason}"


@pytest.mark.slow
@pytest.mark.parametrize("peer", ["onnxruntime", "openvino", "ctranslate2", "compile"])
def test_peers_infer(peer, monkeypatch):
    chosen = [v for v in variants.choose("inference", (peer,), quick=False, preload=None) if v.peer == peer]
    for variant in chosen:
        if variant.missing:
            pytest.skip(variant.missing)
    for name, row in _run("inference", chosen, monkeypatch).items():
        assert row.status == "ok", f"{name}: {row.reason}"


@pytest.mark.skipif(_native.why_missing() is not None, reason=str(_native.why_missing()))
def test_the_probe_measures_every_level():
    rates = Probe(None, "fp32", 1).rates()
    levels = _native.extension().supported_isas()
    for level in levels:
        assert (f"fp32 {level}" in rates) == (SAME_LOOPS.get(level) not in levels), level
    assert all(rate > 0.01 for rate in rates.values())
    assert _native.isa() == Probe(None, "fp32", 1).module.isa()
    best = peaks(rates)
    assert best["bf16"] >= best["fp32"] > 0


def _case(kernel):
    import torch
    import torch.nn.functional as F

    x = torch.randn(16, 32)
    return kernels.Case("gelu", "16x32", kernel, F.gelu, F.gelu, [x], torch.randn(16, 32), 4 * 5 * x.numel(), 100.0)


def test_a_wrong_kernel_gets_no_figure():
    import torch
    import torch.nn.functional as F

    right = kernels.measure(_case(F.gelu), torch.float32, 3, {"fp32": 50.0, "copy": 10.0})
    assert right["reason"] is None
    assert right["of_copy"] == pytest.approx(right["gb_per_s"] / 10)
    assert right["of_peak"] == pytest.approx(right["gflops"] / 50)
    assert right["ratio"] == pytest.approx(right["torch_ms"] / right["ours_ms"])
    assert right["gb_per_s"] * right["ours_ms"] == pytest.approx(4 * 5 * 16 * 32 / 1e6)
    half = kernels.measure(_case(F.gelu), torch.bfloat16, 3, {})
    assert half["gb_per_s"] * half["ours_ms"] == pytest.approx(2 * 5 * 16 * 32 / 1e6), "of half as many bytes"
    wrong = kernels.measure(
        _case(lambda x: F.gelu(x, approximate="tanh")), torch.float32, 3, {"fp32": 50.0, "copy": 10.0}
    )
    assert wrong["reason"].startswith("wrong: the error of the result")
    assert wrong["ours_ms"] is None
    assert wrong["ratio"] is None

    def half_gradient(x):
        return F.gelu(x).detach() + 0.5 * (F.gelu(x) - F.gelu(x).detach())

    gradient = kernels.measure(_case(half_gradient), torch.float32, 3, {})
    assert gradient["reason"].startswith("wrong: the error of the gradient of argument 1")
