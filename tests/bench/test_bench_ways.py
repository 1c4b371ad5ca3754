"""Libraries that compute pads, called so that there are few: the same answers, in one process, only where it helps."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fastbert.bench import models, peers, variants, workloads
from fastbert.bench.peers import EACH, LABELLED, SORTED, calls
from fastbert.bench.session import Row, Session, SessionPlan
from fastbert.bench.variants import Variant
from fastbert.bench.workloads import Workload
from fastbert.config import BertConfig

CONFIG = BertConfig(
    hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, vocab_size=300,
    max_position_embeddings=32,
)  # fmt: skip
LENGTHS = (3, 9, 2, 9, 5, 12)
MIXED = Workload("M", "mixed", "inference", LENGTHS)
FULL = Workload("F", "full", "inference", (4, 4))


@pytest.fixture(autouse=True)
def _planted_can_be_imported(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), *sys.path]))


def test_calls_by_hand():
    assert [rows.tolist() for rows in calls(np.array(LENGTHS), None)] == [[0, 1, 2, 3, 4, 5]]
    assert [rows.tolist() for rows in calls(np.array(LENGTHS), SORTED)] == [[5, 1, 3, 4], [0, 2]]
    assert [rows.tolist() for rows in calls(np.array(LENGTHS), EACH)] == [[0], [1], [2], [3], [4], [5]]
    # Of W2's 3,488 padded tokens, 1,137 of which are real: four in a row of the order of lengths.
    lengths = np.array(next(w for w in workloads.INFERENCE if w.name == "W2").lengths)
    assert sum(len(rows) * lengths[rows].max() for rows in calls(lengths, SORTED)) == 1324
    assert sum(lengths[rows].max() for rows in calls(lengths, EACH)) == 1137


@pytest.mark.parametrize("way", [None, SORTED, EACH])
def test_transformers_answer_alike_in_every_way(way, tmp_path):
    pytest.importorskip("transformers")
    models.make_directory("base", tmp_path, CONFIG)
    batch = workloads.make_batch(MIXED, CONFIG.vocab_size)
    adapter = peers.load(".transformers_:Inference")(tmp_path, "fp32", 1)
    adapter.prepare(batch)
    whole = adapter.answer()["hidden"]
    adapter.way = way
    adapter.prepare(batch)
    widths = {None: [(6, 12)], SORTED: [(4, 12), (2, 3)], EACH: [(1, length) for length in LENGTHS]}[way]
    assert [tuple(inputs["input_ids"].shape) for inputs in adapter.inputs] == widths
    kept = batch["attention_mask"] != 0
    found = adapter.answer()["hidden"]
    assert found.shape == whole.shape
    np.testing.assert_allclose(found[kept], whole[kept], rtol=0, atol=2e-6)


def test_labels_alone_give_the_same_loss_and_gradients(tmp_path):
    pytest.importorskip("transformers")
    models.make_directory("base", tmp_path, CONFIG)
    batch = workloads.make_batch(replace(MIXED, kind="training"), CONFIG.vocab_size)
    adapter = peers.load(".transformers_:Training")(tmp_path, "fp32", 1)
    adapter.prepare(batch)
    whole = adapter.answer()
    adapter.way = LABELLED
    adapter.prepare(batch)
    rows = []
    adapter.model.cls.predictions.register_forward_hook(lambda module, given, _: rows.append(given[0].shape[0]))
    found = adapter.answer()
    assert rows == [int((batch["labels"] != -100).sum())]
    assert set(found) == set(whole)
    for name, value in whole.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-6, err_msg=name)
    first = adapter.step()
    assert [adapter.step() for _ in range(8)][-1] < first


@pytest.fixture
def settings_of_the_compiler():
    """Sets back what a compiled peer sets. pytest's monkeypatch would leave torch's configuration without the entry."""
    import torch._dynamo
    import torch._inductor.config

    with torch._dynamo.config.patch(recompile_limit=8), torch._inductor.config.patch(freezing=False):
        yield


def test_compiled_inference_is_frozen_and_does_not_mix_up_its_shapes(tmp_path, settings_of_the_compiler):
    pytest.importorskip("transformers")
    import torch

    models.make_directory("base", tmp_path, CONFIG)
    adapter = peers.load(".transformers_:CompiledInference")(tmp_path, "fp32", 1)
    assert torch._inductor.config.freezing
    assert not any(parameter.requires_grad for parameter in adapter.model.parameters())
    batch, used = workloads.make_batch(MIXED, CONFIG.vocab_size), []
    for way in (None, SORTED, EACH, None):
        adapter.way = way
        adapter.prepare(batch)
        used.append(adapter.forward)
    assert used == [adapter.of_one_shape, adapter.of_any_length, adapter.of_any_length, adapter.of_one_shape]


def test_a_training_of_transformers_keeps_freed_memory_too(tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    asked = []
    monkeypatch.setattr("fastbert.hardware.keep_freed_memory", lambda: asked.append(1))
    models.make_directory("base", tmp_path, CONFIG)
    peers.load(".transformers_:Training")(tmp_path, "fp32", 1)
    assert asked == [1]


def choose(kind, monkeypatch, only=(), quick=False, preload=None, absent=()):
    monkeypatch.setattr(variants, "why_missing", lambda v: "not installed" if v.peer in absent else None)
    return variants.choose(kind, only, quick, preload)


def test_padded_peers_are_called_in_three_ways(monkeypatch):
    found = choose("inference", monkeypatch, absent=("onnxruntime",))
    names = [v.name for v in found]
    for name in ("transformers sdpa bf16", "torch.compile fp32", "OpenVINO int8"):
        at = names.index(name)
        assert names[at + 1 : at + 3] == [f"{name}, sorted, 4 a call", f"{name}, one call a sentence"]
        assert [(v.way, v.of, v.process) for v in found[at : at + 3]] == [
            (None, None, name), (SORTED, name, name), (EACH, name, name)
        ]  # fmt: skip
    assert not [v.name for v in found if v.way and (v.ours or v.peer in ("eager", "ctranslate2", "onnxruntime"))]
    mixed = [w.name for w in workloads.INFERENCE if found[names.index("OpenVINO int8") + 1].runs_on(w)]
    assert mixed == ["W2"]
    assert all(found[names.index("OpenVINO int8")].runs_on(w) for w in workloads.INFERENCE)


def test_what_quick_and_preload_make_of_ways(monkeypatch):
    quick = {v.name: v.missing for v in choose("inference", monkeypatch, quick=True)}
    assert quick["OpenVINO fp32, sorted, 4 a call"] is None
    assert quick["OpenVINO fp32, one call a sentence"] == "one of two such ways: left out by --quick"
    assert not [name for name in quick if name.startswith("torch.compile") and "call" in name]
    asked = choose("inference", monkeypatch, only=("openvino",), quick=True)
    assert all(v.missing is None for v in asked)
    assert {v.preload for v in choose("inference", monkeypatch)} == {None}
    preloaded = {v.name: (v.of, v.preload) for v in choose("inference", monkeypatch, preload="L") if v.preload}
    assert preloaded["OpenVINO int8 + preload, sorted, 4 a call"] == ("OpenVINO int8 + preload", "L")
    assert not [name for name in preloaded if "fp32" in name]


def test_training_has_a_peer_that_computes_labelled_tokens_only(monkeypatch):
    found = [v for v in choose("training", monkeypatch) if v.way]
    names = [(v.name, v.peer, v.dtype, v.of) for v in found]
    assert names == [
        (f"transformers {dtype}, labelled tokens only", "sdpa", dtype, f"transformers {dtype}")
        for dtype in ("fp32", "bf16")
    ]
    assert all(v.runs_on(w) for v in found for w in workloads.TRAINING)


def ways_of(fault):
    base = Variant(fault, "other", f"planted:{fault}", "fp32")
    return [base, base.called(SORTED), base.called(EACH)]


def run(chosen, *given):
    truth = Variant("truth", "other", "planted:Right", "fp64")
    session = Session(SessionPlan("inference", "base", given, chosen, 2, 1, config=CONFIG, truth=truth, probe=False))
    return session.run(), {(row.workload.name, row.variant.way): row for row in session.rows}


def test_ways_take_turns_on_mixed_lengths_only_and_are_as_fast_as_they_are(monkeypatch):
    monkeypatch.setattr("fastbert.bench.session._ROUND_SECONDS", 0.0)
    started = []
    monkeypatch.setattr(Session, "_load", lambda self, v, *a, _load=Session._load, **k: started.append(v.name) or _load(
        self, v, *a, **k))  # fmt: skip
    session, rows = run(ways_of("Padded"), FULL, MIXED)
    names = [v.name for v in ways_of("Padded")]
    assert session.trace == [("F", "Padded")] * 2 + [("M", name) for name in names] * 2
    assert set(rows) == {("F", None), ("M", None), ("M", SORTED), ("M", EACH)}
    assert {row.status for row in rows.values()} == {"ok"}
    assert started == ["Padded"]
    # 72 places in one rectangle, 54 in two, 40 real tokens; a millisecond each.
    assert rows["M", EACH].median < rows["M", SORTED].median < rows["M", None].median
    assert [rows[key].rss_mb is None for key in (("F", None), ("M", None), ("M", SORTED))] == [False, False, True]


def test_a_way_that_is_wrong_or_crashes_gets_no_figure(monkeypatch):
    monkeypatch.setattr("fastbert.bench.session._ROUND_SECONDS", 0.0)
    _, rows = run(ways_of("ForgetsTheOrder"), MIXED)
    assert [rows["M", way].status for way in (None, SORTED, EACH)] == ["ok", "wrong", "ok"]
    # The process is gone, and with it all that ran in it.
    _, rows = run(ways_of("DiesInOneWay"), MIXED, FULL)
    assert {row.reason for row in rows.values()} == {"crashed: signal 4 (SIGILL)"}
    assert len(rows) == 4


def test_a_process_is_set_to_a_way_and_warmed_before_it_is_timed():
    asked = []

    class Recorder:
        def ask(self, do, timeout, **request):
            asked.append((do, request.get("way"), request.get("warm")))
            return {"seconds": [1.0], "losses": [None]}

    base, by_length, _ = ways_of("Padded")
    session = Session(SessionPlan("inference", "base", (MIXED,), ()))
    session.batches = {"M": Path("M.npz")}
    alone = Row(MIXED, replace(base, name="alone"))
    workers = {"Padded": Recorder(), "alone": Recorder()}
    for row in (Row(MIXED, base), Row(MIXED, by_length), Row(MIXED, base), alone, alone):
        session._turn(row, workers, 1)
    assert asked == [
        ("prepare", None, None), ("run", None, 1), ("prepare", SORTED, None), ("run", None, 1),
        ("prepare", None, None), ("run", None, 1), ("prepare", None, None), ("run", None, 1), ("run", None, 0),
    ]  # fmt: skip


def test_variants_of_one_format_are_converted_once(monkeypatch):
    asked = []

    class Recorder:
        def __init__(self, *_):
            pass

        def ask(self, do, timeout, **request):
            asked.append((do, request["dtype"]))

        def close(self):
            pass

    monkeypatch.setattr("fastbert.bench.session.Worker", Recorder)
    base = Variant("a", "openvino", ".openvino_:Inference", "int8")
    session = Session(SessionPlan("inference", "base", (MIXED,), ()))
    session.scratch = session.directory = Path()
    for variant in (base, replace(base, name="a + preload", preload="L"), replace(base, name="b", dtype="fp32")):
        session._load(variant, {}, {}, needed_mb=0)
    assert asked == [
        ("convert", "int8"), ("load", "int8"), ("load", "int8"), ("convert", "fp32"), ("load", "fp32"),
    ]  # fmt: skip


def test_int8_is_calibrated_on_what_is_measured_but_for_the_ids():
    pytest.importorskip("openvino")
    from fastbert.bench.peers.openvino_ import calibration

    batches = calibration(30522, 512)
    lengths = np.concatenate([batch["attention_mask"].sum(1) for batch in batches])
    # NNCF takes 300 samples by default, and refuses none of these.
    assert len(lengths) == 300
    assert (lengths.min(), lengths.max()) == (4, 512)
    assert {"input_ids", "attention_mask", "token_type_ids"} == set(batches[0])
    assert any((batch["attention_mask"] == 0).any() for batch in batches)
    measured = [workloads.make_batch(w, 30522)["input_ids"] for w in workloads.INFERENCE]
    for batch in batches:
        rows, last = range(len(batch["input_ids"])), batch["attention_mask"].sum(1) - 1
        assert (batch["input_ids"][:, 0] == 101).all()
        assert (batch["input_ids"][rows, last] == 102).all()
        assert (batch["token_type_ids"][rows, last] == 1).all()
        assert not any(np.array_equal(batch["input_ids"][:, 1:4], ids[: len(rows), 1:4]) for ids in measured)
    assert max(batch["input_ids"].shape[1] for batch in calibration(300, 32)) == 32
