"""Steps of fixed shape are ordinary steps: the same losses, the same weights, the same decisions."""

from __future__ import annotations

import contextlib
import copy
import gc
import math
import weakref
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from pretraining_runs import assert_same_run, checkpoint_of, stop_after
from static_batches import real

from fastbert import BertConfig, BertForPreTraining, optim
from fastbert.data.budget import BudgetData
from fastbert.data.config import SampleConfig
from fastbert.data.pretraining import PretrainingData
from fastbert.data.shards import ShardSet
from fastbert.errors import CheckpointError, InputError
from fastbert.graph_capture import on_stream
from fastbert.train import graph
from fastbert.train.engine import LocalEngine, TrainingDiverged
from fastbert.train.flops import batch_flops
from fastbert.train.pretrain import pretrain
from fastbert.train.window import Window

LR = 2e-3


@pytest.fixture(scope="module")
def data(prepared) -> BudgetData:
    return BudgetData(PretrainingData(ShardSet.open(prepared), SampleConfig(max_seqlen=32)), 160)


def build(directory, on_device: bool, precision: str = "fp32", dropout: float = 0.1, **options) -> LocalEngine:
    rates = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    model = BertForPreTraining.from_pretrained(directory, **rates).train()
    optimizer = optim.AdamW(optim.param_groups(model, 0.01), lr=LR)
    return LocalEngine(model, optimizer, precision=precision, seed=5, on_device=on_device, **options)


def micro_batches(data: BudgetData, accumulate: int, steps: int):
    places = [(epoch, ids) for epoch in range(3) for ids in data.batches(epoch)]
    for step in range(steps):
        yield [data.collate(*place) for place in places[step * accumulate : (step + 1) * accumulate]]


def ordinary_step(engine: LocalEngine, batches, lr: float) -> tuple[float, float]:
    """What the loop does: each micro-batch's means weighted by its share of the labels. Loss and gradient's norm."""
    labels, pairs = sum(b.num_labels for b in batches), sum(b.num_pairs for b in batches)
    losses = []
    for batch in batches:

        def loss(batch=batch):
            out = engine.model(batch)
            return out.mlm_loss * (batch.num_labels / labels) + out.nsp_loss * (batch.num_pairs / pairs)

        losses.append(engine.backward(loss))
    norm = engine.step(lr)
    return float(sum(losses)), norm


def static_steps(engine: LocalEngine, data: BudgetData, accumulate: int, steps: int) -> list[tuple[float, float]]:
    step = graph.make(engine, data.shape, pairs=True, accumulate=accumulate)
    found = []
    for batches in micro_batches(data, accumulate, steps):
        norm = float(step.run(batches, LR))
        found.append((float(step.take_sums()[0]), norm))
    engine.settle()
    return found


@pytest.mark.parametrize(
    ("accumulate", "filled", "precision"),
    [*((n, filled, "fp32") for n in (1, 3) for filled in (True, False)), (2, True, "bf16"), (2, True, "fp16")],
)
def test_losses_norms_and_weights_are_those_of_ordinary_steps(data, tiny_model, accumulate, filled, precision):
    """With the batches as they are, and with the same data without pads."""
    static, plain = build(tiny_model, True, precision), build(tiny_model, False, precision)
    for engine in (static, plain):
        engine.scale.restore({"scale": 1024.0, "good": 0})  # of fp16: at its first one these gradients overflow
    got = static_steps(static, data, accumulate, 5)
    wanted = [
        ordinary_step(plain, batches if filled else [real(b) for b in batches], LR)
        for batches in micro_batches(data, accumulate, 5)
    ]
    (losses, norms), (wanted_losses, wanted_norms) = (list(zip(*found, strict=True)) for found in (got, wanted))
    # A batch's share is a factor of the loss, which is here in the device's memory: 16-bit gradients round otherwise.
    of_loss, of_norm, of_weights = (2e-6, 1e-5, 2e-5) if precision == "fp32" else (5e-5, 1e-3, 1e-4)
    assert losses == pytest.approx(wanted_losses, rel=of_loss)
    assert norms == pytest.approx(wanted_norms, rel=of_norm)
    assert wanted_losses[0] != pytest.approx(wanted_losses[-1], rel=1e-2)
    assert static.skipped == plain.skipped == 0
    for a, b in zip(static.parameters, plain.parameters, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=of_weights)
    assert static.micro_step == plain.micro_step == 5 * accumulate


def test_the_sums_are_those_of_the_batches(data, tiny_model):
    engine = build(tiny_model, True, dropout=0.0)
    (batches,) = micro_batches(data, 2, 1)
    before = copy.deepcopy(engine.model)
    step = graph.make(engine, data.shape, pairs=True, accumulate=2)
    step.run(batches, LR)
    sums = dict(zip(("loss", "mlm", "nsp", "mlm_right", "nsp_right"), step.take_sums().tolist(), strict=True))
    with torch.no_grad():
        outs = [before(real(b)) for b in batches]
    counts = [(b.num_labels, b.num_pairs) for b in batches]
    assert sums["mlm"] == pytest.approx(sum(float(o.mlm_loss) * n for o, (n, _) in zip(outs, counts, strict=True)))
    assert sums["nsp"] == pytest.approx(sum(float(o.nsp_loss) * n for o, (_, n) in zip(outs, counts, strict=True)))
    right = sum(int((o.mlm_logits.argmax(-1) == real(b).mlm_labels).sum()) for o, b in zip(outs, batches, strict=True))
    assert sums["mlm_right"] == right
    right = sum(int((o.nsp_logits.argmax(-1) == real(b).nsp_labels).sum()) for o, b in zip(outs, batches, strict=True))
    assert sums["nsp_right"] == right
    assert not step.take_sums().any()


def test_dropout_differs_from_step_to_step_and_comes_again(data, tiny_model):
    (batches,) = micro_batches(data, 1, 1)

    def losses(first: int, count: int) -> list[float]:
        engine = build(tiny_model, True, dropout=0.3)
        engine.micro_step = first
        step = graph.make(engine, data.shape, pairs=True, accumulate=1)
        found = []
        for _ in range(count):
            step.run(batches, 0.0)  # nothing but the dropout changes
            found.append(float(step.take_sums()[0]))
        return found

    three = losses(7, 3)
    assert len(set(three)) == 3
    assert losses(7, 3) == three
    assert losses(8, 2) == three[1:]


def test_the_place_in_device_memory_is_the_engine_s(data, tiny_model):
    """Whatever moved that on between two steps. Only a GPU's kernels read it there."""
    engine = build(tiny_model, True)
    engine.seed = (1 << 63) + 5
    step = graph.make(engine, data.shape, pairs=True, accumulate=2)
    read, key = [], step._random.key
    step._random.key = lambda engine: (given := key(engine), read.append(given.state.tolist()))[0]
    (batches,) = micro_batches(data, 2, 1)
    for place in (0, 2, 9):
        engine.micro_step = place
        step.run(batches, LR)
    assert read == [[5 - (1 << 63), place] for place in (0, 1, 2, 3, 9, 10)]


def test_a_broken_gradient_is_skipped_on_the_device(data, tiny_model):
    engine = build(tiny_model, True, patience=2)
    step = graph.make(engine, data.shape, pairs=True, accumulate=1)
    (good,) = micro_batches(data, 1, 1)
    broken = {"now": False}
    hook = engine.model.cls.predictions.bias.register_hook(lambda g: g * (math.nan if broken["now"] else 1.0))

    def run(is_broken: bool) -> list[torch.Tensor]:
        broken["now"] = is_broken
        norm = step.run(good, LR)
        assert math.isfinite(norm) != is_broken
        return [p.detach().clone() for p in engine.parameters]

    before = run(False)
    assert all(torch.equal(a, b) for a, b in zip(before, run(True), strict=True))
    after = run(False)
    assert not torch.equal(before[0], after[0])
    engine.settle()
    assert engine.skipped == 1
    run(True)
    last = run(True)
    with pytest.raises(TrainingDiverged, match="2 steps in a row"):
        engine.settle()
    assert all(torch.equal(a, b) for a, b in zip(after, last, strict=True))
    assert {engine.optimizer.state[p]["step"] for p in engine.parameters} == {2}
    hook.remove()


def test_where_a_graph_can_be_had(recipe, tiny_model, monkeypatch):
    engine = build(tiny_model, False)
    assert not graph.wanted_in(recipe(), engine)
    assert not graph.wanted_in(recipe(cuda_graph="off"), engine)
    assert graph.wanted_in(recipe(cuda_graph="on"), engine), "steps of fixed shape, not captured"
    for options in ({"spike_sigma": 6.0}, {"activation_checkpointing": True}):
        with pytest.raises(InputError, match=f"cuda_graph: on is not possible: {next(iter(options))}"):
            graph.wanted_in(recipe(cuda_graph="on", **options), engine)
    assert "need a CUDA device" in graph.why_not(engine)
    engine.device = torch.device("cuda")
    with monkeypatch.context() as patch:
        for name in ("empty", "zeros"):
            patch.setattr(torch, name, lambda *_, **__: None)  # there is no such device
        for serving, expected in (
            ({"dropout": "triton", "attention": "triton"}, None),
            ({"dropout": "reference"}, "dropout of backend reference would drop the same elements"),
            (
                {"dropout": "triton", "attention": "reference"},
                "attention of backend reference (heads of 16) reads",
            ),
        ):
            choose = lambda op, *_, serving=serving: SimpleNamespace(backend=serving.get(op))  # noqa: E731
            patch.setattr(graph._dispatch, "choose", choose)
            assert (reason := graph.why_not(engine)) is expected or expected in reason
    monkeypatch.setattr(graph, "why_not", lambda device: None)
    assert graph.wanted_in(recipe(), engine)
    monkeypatch.setattr(engine, "__class__", type("OfSeveral", (LocalEngine,), {}))
    assert not graph.wanted_in(recipe(), engine)
    assert graph.why_not_wanted(recipe(), engine) == "steps of several processes are not captured"
    monkeypatch.setattr(engine, "__class__", LocalEngine)
    assert not graph.wanted_in(recipe(activation_checkpointing=True), engine)
    monkeypatch.setattr(graph, "why_not", lambda device: "the kernels are not there")
    assert not graph.wanted_in(recipe(), engine)
    with pytest.raises(InputError, match="the kernels are not there"):
        graph.wanted_in(recipe(cuda_graph="on"), engine)


def test_a_run_says_what_pads_cost_and_resumes_to_the_bit(recipe, tmp_path):
    options = {"cuda_graph": "on", "dropout": 0.1, "accumulate": 2, "log_every": 2}
    whole = pretrain(recipe(**options, steps=6, out=str(tmp_path / "whole")), quiet=True)
    rows = [row for row in whole.history if row["kind"] == "train"]
    assert [row["step"] for row in rows] == [2, 4, 6]
    assert all(row["executed_tokens_per_second"] >= row["tokens_per_second"] for row in rows)
    assert any(row["executed_tokens_per_second"] > row["tokens_per_second"] for row in rows)
    assert all(0 < row["loss"] < 10 and 0 <= row["nsp_acc"] <= 1 for row in rows)

    class Enough(Exception):
        pass

    def stop(row: dict) -> None:
        if row["step"] == 4:
            raise Enough

    parts = recipe(**options, steps=6, save_every=3, out=str(tmp_path / "parts"))
    with pytest.raises(Enough):
        pretrain(parts, callbacks=[stop], quiet=True)
    pretrain(replace(parts, resume="auto"), quiet=True)
    assert_same_run(tmp_path / "parts", tmp_path / "whole", 6)
    for changes, reason in (
        ({"cuda_graph": "off"}, "cuda_graph is off"),
        ({"cuda_graph": "auto", "spike_sigma": 6.0}, "spike_sigma needs the loss of a step"),
        ({"cuda_graph": "auto"}, "CUDA graphs need a CUDA device"),
    ):
        told = f"its batches have one shape, .* would not: {reason}.*; go on with --cuda-graph on, in one process, or "
        with pytest.raises(CheckpointError, match=told):
            pretrain(replace(parts, resume="auto", **changes), quiet=True)


def test_where_a_graph_could_be_had_a_run_without_one_goes_on_without(recipe, tmp_path, monkeypatch, capsys):
    """It began on several processes, say. By epochs, which have as many steps as there are batches."""
    options = {"steps": None, "epochs": 2.0, "dropout": 0.1}
    whole = pretrain(recipe(**options, out=str(tmp_path / "whole")), quiet=True)
    parts = recipe(**options, out=str(tmp_path / "parts"))
    pretrain(parts, callbacks=[stop_after(3)], quiet=True)
    monkeypatch.setattr(graph, "wanted_in", lambda config, engine: config.cuda_graph != "off")
    padded = recipe(**options, out=str(tmp_path / "padded"))
    assert pretrain(padded, quiet=True).steps != whole.steps, "else it would not matter of which batches an epoch is"
    told = "its batches have any shape, got --cuda-graph on, which pads them to one; go on with --cuda-graph auto, or"
    with pytest.raises(CheckpointError, match=told):
        pretrain(replace(parts, resume="auto", cuda_graph="on"), quiet=True)
    pretrain(replace(parts, resume="auto"))
    said = capsys.readouterr().out
    assert said.count("its batches have any shape, and so will those to come, without a CUDA graph\n") == 1
    assert "steps      batches of any shape" in said
    assert_same_run(tmp_path / "parts", tmp_path / "whole", whole.steps)


def test_pads_are_neither_text_nor_arithmetic(data):
    """Of what a line says pads are in the executed tokens alone."""
    ids = min(data.batches(0), key=lambda ids: data.lengths(0)[ids].sum())
    batch, lengths = data.collate(0, ids), data.lengths(0)[ids]
    assert batch.num_tokens == 160 > lengths.sum()
    config, window = BertConfig.from_name("2x32x2"), Window()
    window.count(batch, config)
    window.seconds = 2.0
    row = window.row(peak=1e6)
    assert row["mfu"] == pytest.approx(batch_flops(config, lengths, batch.num_labels) / 2.0 / 1e6)
    assert (row["tokens_per_second"], row["executed_tokens_per_second"]) == (lengths.sum() / 2.0, 80.0)


def test_fp16_halves_its_scale_until_nothing_overflows_and_keeps_it_over_a_resume(recipe, tmp_path):
    options = {"precision": "fp16", "dropout": 0.1, "save_every": 3}
    whole = pretrain(recipe(**options, steps=6, out=str(tmp_path / "whole")), quiet=True)
    rows = [row for row in whole.history if row["kind"] == "train"]
    scales = [row["loss_scale"] for row in rows]
    assert scales[-1] == 65536 / 2 ** rows[-1]["skipped_steps"]
    static = pretrain(recipe(**options, steps=3, cuda_graph="on", out=str(tmp_path / "static")), quiet=True)
    last = [row for row in static.history if row["kind"] == "train"][-1]
    assert last["loss_scale"] == 65536 / 2 ** last["skipped_steps"]
    _, state = checkpoint_of(tmp_path / "whole", 6)
    assert state["loss_scale"] == {"scale": scales[-1], "good": 6 - rows[-1]["skipped_steps"]}
    plain = pretrain(recipe(steps=6, dropout=0.1, out=str(tmp_path / "plain")), quiet=True)
    if not rows[-1]["skipped_steps"]:
        wanted = [row["loss"] for row in plain.history if row["kind"] == "train"]
        assert [row["loss"] for row in rows] == pytest.approx(wanted, rel=2e-2)


def test_the_capture_is_of_the_warmed_up_step(data, tiny_model, monkeypatch):
    """The order of warm-up, capture and replay, with a graph that records calls in place of CUDA's."""
    calls = []

    class Graph:
        def replay(self) -> None:
            calls.append("replay")

    class Capture:
        def __init__(self, made, pool, stream, capture_error_mode) -> None:
            assert (stream, capture_error_mode) == ("its own", "thread_local")
            calls.append("capture")

        def __enter__(self) -> None:
            assert all(p.grad is None for p in engine.parameters), "a captured backward pass must write, not add"
            assert not gc.isenabled(), "what is collected now may be a graph, which cannot go during a capture"

        def __exit__(self, *_exception) -> None:
            pass

    engine = build(tiny_model, True)
    step = graph.make(engine, data.shape, pairs=True, accumulate=1)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", Capture)
    monkeypatch.setattr(graph, "on_stream", lambda stream: contextlib.nullcontext(calls.append(f"on {stream}")))
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda x: x)
    monkeypatch.setattr(step._captures, "on_device", contextlib.nullcontext)
    step._captures.enabled, step._captures.stream, step._whole._stream = True, "its own", "its own"
    for batches in micro_batches(data, 1, 6):
        step.run(batches, LR)
    assert calls == [*["on its own"] * 3, "capture", "replay", "replay", "replay"]
    assert gc.isenabled()


def test_what_runs_on_a_side_stream_waits_and_is_waited_for(monkeypatch):
    """On a device nothing else keeps the batch before the step, and the replays behind it."""
    calls = []

    class Stream:
        def __init__(self, name: str) -> None:
            self.name = name

        def wait_stream(self, other: Stream) -> None:
            calls.append(f"{self.name} waits for {other.name}")

    current, side = Stream("current"), Stream("side")
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: current)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext(calls.append(f"on {stream.name}")))
    with on_stream(side):
        calls.append("steps")
    assert calls == ["side waits for current", "on side", "steps", "current waits for side"]


@pytest.mark.parametrize("accumulate", [1, 2])
def test_what_a_graph_has_in_memory_goes_with_its_phase(data, tiny_model, accumulate):
    """The next phase's first steps are before any search for circles, and need as much."""
    engine = build(tiny_model, True)
    step = graph.make(engine, data.shape, pairs=True, accumulate=accumulate)
    for batches in micro_batches(data, accumulate, 2):
        step.run(batches, LR)
    graphs = [weakref.ref(one) for one in (step, step._whole, step._first, step._next, step._update)]
    gc.disable()
    try:
        del step
        assert all(one() is None for one in graphs)
    finally:
        gc.enable()


def test_what_a_graph_has_in_memory_goes_with_its_run(recipe, monkeypatch):
    """The loop itself stays until Python looks for circles."""
    made = []

    def make(*arguments, **options):
        step = plain(*arguments, **options)
        made.append(weakref.ref(step))
        return step

    plain = graph.make
    monkeypatch.setattr(graph, "make", make)
    gc.disable()
    try:
        pretrain(recipe(steps=2, cuda_graph="on"), quiet=True)
        assert [step() for step in made] == [None]
    finally:
        gc.enable()
