"""Graphs of training steps go when what they were captured from is replaced: unfrozen layers learn, a checkpoint's
moments count. With graphs that record calls in place of CUDA's; tests/stand_in has some that are replayed."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fastbert import BertConfig, BertForPreTraining, BertForSequenceClassification, PackedBatch, optim
from fastbert.data.budget import BatchShape, fill_up
from fastbert.train import graph, shaped_steps
from fastbert.train.capture import Captures
from fastbert.train.engine import LocalEngine

LR = 1e-3
SIZES = {
    "vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8,
    "max_position_embeddings": 8,
}  # fmt: skip


@pytest.fixture
def calls(monkeypatch) -> list[str]:
    """What is done as it is, captured (and done) and replayed (and not done), and where the host waits."""
    calls: list[str] = []

    class Graph:
        def replay(self) -> None:
            calls.append("replay")

    class Enabled(Captures):
        def __init__(self, device: torch.device) -> None:
            super().__init__(device)
            self.enabled, self.stream = True, "its own"

        def on_device(self) -> contextlib.AbstractContextManager:
            return contextlib.nullcontext()

    @contextlib.contextmanager
    def capture(_graph, pool, stream, capture_error_mode):
        assert (stream, capture_error_mode) == ("its own", "thread_local")
        calls.append("capture")
        yield

    def on_stream(stream) -> contextlib.AbstractContextManager:
        calls.append("as it is")
        return contextlib.nullcontext()

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _device: calls.append("wait"))
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda x: x)
    for module in (graph, shaped_steps):
        monkeypatch.setattr(module, "on_stream", on_stream)
        monkeypatch.setattr(module, "Captures", Enabled, raising=False)
    monkeypatch.setattr(graph, "_WARM_UP", 1)
    return calls


def fine_tuning() -> tuple[LocalEngine, Callable[[], object]]:
    model = BertForSequenceClassification(BertConfig(**SIZES, num_labels=2)).train()
    engine = engine_of(model)
    steps = shaped_steps.ShapedSteps(engine, 2, 8)
    batch, labels = PackedBatch.from_sequences([[5, 6, 7], [8, 9]]), {"labels": torch.tensor([0, 1])}
    return engine, lambda: steps.run(batch, labels, LR, {})


def pre_training(accumulate: int = 1) -> tuple[LocalEngine, Callable[[], object]]:
    engine = engine_of(BertForPreTraining(BertConfig(**SIZES)).train())
    shape = BatchShape(tokens=8, sequences=3, predictions=2, max_seqlen=8)
    labels = {"mlm_positions": torch.tensor([0]), "mlm_labels": torch.tensor([4]), "nsp_labels": torch.tensor([0, 1])}
    batch = fill_up(PackedBatch.from_sequences([[5, 6, 7], [8, 9]], **labels), shape, 0)
    step = graph.make(engine, shape, pairs=True, accumulate=accumulate)
    return engine, lambda: step.run([batch] * accumulate, LR)


def engine_of(model: torch.nn.Module) -> LocalEngine:
    model.bert.encoder.requires_grad_(False)
    return LocalEngine(model, optim.AdamW(model.parameters(), lr=LR), seed=5, on_device=True)


def unfreeze(engine: LocalEngine) -> None:
    engine.model.bert.encoder.requires_grad_(True)


def restore(engine: LocalEngine) -> None:
    tensors, state = engine.state()
    engine.restore(Path("a checkpoint"), {name: x.clone() for name, x in tensors.items()}, copy.deepcopy(state))


def load(engine: LocalEngine) -> None:
    engine.optimizer.load_state_dict(copy.deepcopy(engine.optimizer.state_dict()))


def add(engine: LocalEngine) -> None:
    engine.optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(3))]})


def move(engine: LocalEngine) -> None:
    moved = engine.parameters[-1]
    moved.data = moved.data.clone()


def step_on_the_host(engine: LocalEngine) -> None:
    for p in engine.parameters:
        p.grad = torch.zeros_like(p)
    engine.optimizer.step()


@pytest.mark.parametrize("kind", [fine_tuning, pre_training])
@pytest.mark.parametrize("change", [unfreeze, restore, load, add, move, step_on_the_host])
def test_what_was_replaced_is_captured_again(calls, kind, change):
    engine, run = kind()
    for _ in range(3):
        run()
    assert calls == ["as it is", "capture", "replay", "replay"]
    calls.clear()
    change(engine)
    layer = engine.model.bert.encoder.layer[0].output.dense.weight
    before = layer.detach().clone()
    for _ in range(3):
        run()
    assert calls == ["wait", "as it is", "capture", "replay", "replay"]
    assert torch.equal(layer, before) == (change is not unfreeze)


@pytest.mark.parametrize("kind", [fine_tuning, pre_training])
def test_what_replaces_nothing_lets_the_graph_stay(calls, kind):
    """A checkpoint that is written, a step in between, weights and gradients that are written to."""
    engine, run = kind()
    for _ in range(2):
        run()
    calls.clear()
    engine.state()
    engine.step(LR)
    with torch.no_grad():
        engine.parameters[0].mul_(0.5)
    engine.optimizer.zero_grad(set_to_none=True)
    run()
    assert calls == ["replay"]


def test_all_graphs_of_several_micro_batches_are_captured_again(calls):
    engine, run = pre_training(accumulate=2)
    run()
    run()
    calls.clear()
    run()
    assert calls == ["replay"] * 3  # the first micro-batch, the second, and the update
    calls.clear()
    unfreeze(engine)
    run()
    run()
    assert calls == ["wait", "as it is", *["capture", "replay"] * 3]
