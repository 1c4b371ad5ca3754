"""Training in 8 bits: which layers, which devices, and a run that goes on to the bit."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from levels import needs_eight_bits
from pretraining_runs import assert_same_run, checkpoint_of

from fastbert import BertForPreTraining, GPT2Config, GPTConfig, GPTForPreTraining, PackedBatch, fp8, optim
from fastbert.data.config import SampleConfig
from fastbert.data.pretraining import PretrainingData
from fastbert.data.shards import ShardSet
from fastbert.errors import BackendError, CheckpointError, InputError
from fastbert.modules.fp8 import policy
from fastbert.train import precision
from fastbert.train.engine import LocalEngine
from fastbert.train.pretrain import pretrain


@pytest.fixture(scope="module")
def batches(prepared):
    data = PretrainingData(ShardSet.open(prepared), SampleConfig(max_seqlen=32))
    return [data.collate(0, ids) for ids in data.batches(0, 160)[:4]]


def build(directory, name: str = "fp8", dropout: float = 0.1) -> LocalEngine:
    rates = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    model = BertForPreTraining.from_pretrained(directory, **rates).train()
    return LocalEngine(model, optim.AdamW(optim.param_groups(model, 0.01), lr=2e-3), precision=name)


def take(engine: LocalEngine, batches) -> list[float]:
    losses = []
    for batch in batches:
        losses.append(float(engine.backward(lambda batch=batch: engine.model(batch).loss)))
        engine.step(2e-3)
    return losses


@needs_eight_bits
def test_the_dense_layers_of_the_encoder_multiply_in_8_bits_and_no_others(tiny_model, batches, monkeypatch):
    engine = build(tiny_model)
    names = {id(p): name for name, p in engine.model.named_parameters()}
    called, copies = [], fp8.Site.copies
    monkeypatch.setattr(
        fp8.Site, "copies", lambda site, cast: called.append(names[id(site.weight)]) or copies(site, cast)
    )
    take(engine, batches[:1])
    dense = ("attention.self.query", "attention.self.key", "attention.self.value")
    dense += ("attention.output.dense", "intermediate.dense", "output.dense")
    assert called == [f"bert.encoder.layer.{layer}.{name}.weight" for layer in range(2) for name in dense]
    # An evaluation measures the weights as others will use them.
    called.clear()
    with torch.no_grad(), engine.autocast():
        engine.model.eval()(batches[0])
    assert not called
    with fp8.use(engine.policy.fp8), torch.enable_grad():
        engine.model(batches[0])
    assert called


@pytest.mark.parametrize("kind", [GPTConfig, GPT2Config])
def test_the_layers_of_a_gpt_too(kind):
    """Recomputed or not; the same losses as in float32 but for the rounding."""
    config = kind(vocab_size=50, n_positions=16, n_embd=32, n_layer=2, n_head=2)
    ids = torch.randint(50, (20,), generator=torch.Generator().manual_seed(0))
    bounds = torch.tensor([0, 9, 20], dtype=torch.int32)
    places = torch.cat([torch.arange(9), torch.arange(11)])
    labelled = torch.tensor([0, 1, 2, 3, 10, 11, 12])
    batch = PackedBatch(ids, torch.zeros_like(ids), places, bounds, 11, labelled, ids[labelled + 1])
    losses = {}
    for name, recompute in (("fp32", False), ("fp8", False), ("fp8 again", True)):
        torch.manual_seed(0)
        model = GPTForPreTraining(config).train()
        if recompute:
            model.gradient_checkpointing_enable()
        engine = LocalEngine(model, optim.AdamW(optim.param_groups(model, 0.01), lr=2e-3), precision=name.split()[0])
        losses[name] = take(engine, [batch] * 3)
        if engine.policy.fp8:
            assert len(engine.policy.fp8) == 2 * 4
            assert (engine.policy.fp8.scales.history[:, 0] > 0).all()
    assert losses["fp8"] == losses["fp8 again"]
    assert losses["fp8"] == pytest.approx(losses["fp32"], rel=2e-2)
    assert losses["fp8"] != losses["fp32"]


def test_losses_are_those_of_float32_but_for_the_rounding(tiny_model, batches):
    losses = {name: take(build(tiny_model, name), batches) for name in ("fp32", "bf16", "fp8")}
    assert losses["fp8"] == pytest.approx(losses["fp32"], rel=2e-2)
    assert losses["fp8"] != losses["bf16"]
    assert losses["fp8"][0] > losses["fp8"][-1]


def test_scales_come_of_the_steps_before(tiny_model, batches):
    engine = build(tiny_model)
    scales = engine.policy.fp8.scales
    assert scales.cold
    take(engine, batches[:1])
    assert not scales.cold
    assert not scales.maxima.any()
    assert (scales.history[:, 0] > 0).all(), "every tensor was cast"
    assert (scales.history[:, 1:] == 0).all()
    limits = torch.tensor([fp8.LARGEST[kind] for kind in scales.kinds])
    used = scales.scale[:, 0] * scales.history[:, 0] / limits
    assert ((used > 0.5) & (used <= 1)).all()
    # A step that is left out was measured too, and leaves nothing to the next.
    engine.backward(lambda: engine.model(batches[1]).loss)
    engine.leave_out()
    assert not scales.maxima.any()
    assert (scales.history[:, :2] > 0).all()
    assert all(p.grad is None for p in engine.parameters)


def test_recomputed_layers_multiply_the_same_8_bits(tiny_model, batches):
    engines = [build(tiny_model) for _ in range(2)]
    engines[1].model.gradient_checkpointing_enable()
    assert take(engines[0], batches) == take(engines[1], batches)
    for a, b in zip(*(engine.parameters for engine in engines), strict=True):
        assert torch.equal(a, b)
    assert torch.equal(*(engine.policy.fp8.scales.history for engine in engines))


def test_a_step_that_is_skipped_leaves_scales_as_they_were(tiny_model, batches):
    engine = build(tiny_model)
    take(engine, batches[:2])
    before = copy.deepcopy(engine.policy.fp8.scales.scale)
    engine.backward(lambda: engine.model(batches[2]).loss * float("nan"))
    engine.step(2e-3)
    assert engine.skipped == 1
    now = engine.policy.fp8.scales.scale
    gradients = torch.tensor([kind == fp8.E5M2 for kind in engine.policy.fp8.scales.kinds])
    assert torch.equal(now[gradients], before[gradients])
    losses = take(engine, batches[2:3])
    assert losses[0] > 0
    assert engine.skipped == 1


@pytest.mark.parametrize("cuda_graph", ["off", "on"])
def test_a_run_goes_on_to_the_bit(recipe, tmp_path, cuda_graph):
    options = {"precision": "fp8", "dropout": 0.1, "accumulate": 2, "cuda_graph": cuda_graph, "steps": 6}
    pretrain(recipe(**options, out=str(tmp_path / "whole")), quiet=True)

    class Enough(Exception):
        pass

    def stop(row: dict) -> None:
        if row["step"] == 4:
            raise Enough

    parts = recipe(**options, save_every=3, out=str(tmp_path / "parts"))
    with pytest.raises(Enough):
        pretrain(parts, callbacks=[stop], quiet=True)
    pretrain(replace(parts, resume="auto"), quiet=True)
    assert_same_run(tmp_path / "parts", tmp_path / "whole", 6)  # the histories of the largest values too
    tensors, _ = checkpoint_of(tmp_path / "whole", 6)
    assert (tensors["fp8.history"][:, :6] > 0).all()


def test_a_run_goes_on_in_another_precision(recipe, tmp_path):
    """From bf16 to fp8, whose scales begin anew, and back."""
    options = {"steps": 4, "out": str(tmp_path / "run"), "save_every": 2}
    pretrain(recipe(**options, precision="bf16"), quiet=True)
    for step, name in ((2, "fp8"), (4, "bf16")):
        source = str(tmp_path / "run" / "checkpoints" / f"step_{step}")
        to = recipe(**{**options, "steps": step + 2, "out": str(tmp_path / name)}, precision=name, resume=source)
        assert pretrain(to, quiet=True).steps == step + 2
    assert "fp8.history" in checkpoint_of(tmp_path / "fp8", 4)[0]


def test_another_model_s_scales_are_refused(tiny_model, tmp_path):
    engine = build(tiny_model)
    with pytest.raises(CheckpointError, match=r"fp8.history must be \(32, 16\), got \(16, 16\)"):
        engine.policy.restore(tmp_path, {"fp8.history": torch.zeros(16, 16)})


def test_what_cannot_be_had_is_refused_in_words(tiny_model, recipe, monkeypatch):
    with pytest.raises(InputError, match="fp8 does not go with DeepSpeed"):
        pretrain(recipe(precision="fp8", zero=1), quiet=True)
    model = BertForPreTraining.from_pretrained(tiny_model)
    model.bert.encoder.layer[0].output.dense = torch.nn.Linear(64, 40)
    with pytest.raises(InputError, match=r"multiples of 16, got \(64, 40\) of output.dense"):
        policy(model)
    with pytest.raises(InputError, match="BERT and GPT, Linear has none"):
        policy(torch.nn.Linear(16, 16))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "A100")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    with pytest.raises(BackendError, match=r"capability 8\.9 or newer, got A100 with 8\.0"):
        precision.Precision("fp8", model, torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert precision.why_no_fp8(torch.device("cuda")) is None
    with pytest.raises(BackendError, match="an NVIDIA GPU or a CPU, got meta"):
        precision.Precision("fp8", model, torch.device("meta"))
