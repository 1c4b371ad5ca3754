"""fastbert's own models beside code that replaces functions of torch, the forward of a class, or their modules."""

from __future__ import annotations

import hf_parity as hf
import pytest
import torch
import torch.nn.functional as F
from patched import V5
from torch import nn

import fastbert
from fastbert.modules import hooks

CLASSES = (nn.Linear, nn.LayerNorm, nn.Embedding)


@pytest.mark.parametrize("name", ["BertModel", "BertForMaskedLM", "BertForSequenceClassification"])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    ("room", "function"),
    [(F, "linear"), (F, "layer_norm"), (F, "embedding"), *((c, "forward") for c in CLASSES)],
    ids=["linear", "layer_norm", "embedding", *(f"of {c.__name__}" for c in CLASSES)],
)
def test_what_torch_computes_modules_by_may_be_replaced(name, training, room, function, monkeypatch):
    theirs, ours = (model.train(training) for model in hf.pair(name))
    given, torchs = hf.arguments(name), getattr(room, function)
    kept = hf.kept_tokens(given["attention_mask"])

    def states(model):
        with torch.set_grad_enabled(training):
            out = model(**given, output_hidden_states=True)
        return [out.hidden_states[-1][kept], out[0] if out[0].dim() == 2 else out[0][kept]]

    before = states(ours)
    monkeypatch.setattr(room, function, lambda *inputs, **options: torchs(*inputs, **options).clamp(max=0.2))
    expected, got = states(theirs), states(ours)
    for x, y, plain in zip(got, expected, before, strict=True):
        hf.assert_near(x, y, torch.float32, function)
        assert not torch.allclose(x, plain, atol=1e-3)
    monkeypatch.undo()
    assert all(torch.equal(x, y) for x, y in zip(states(ours), before, strict=True))


@pytest.mark.parametrize(("module", "someones"), [("deepspeed.runtime.zero.linear", False), ("deepspeedy", True)])
def test_what_deepspeed_puts_in_the_place_of_linear_computes_the_same(module, someones):
    linear = eval("lambda *inputs: linear(*inputs)", {"__name__": module, "linear": F.linear})
    assert hooks.is_someones(linear) == someones


def test_a_function_replaced_around_an_encoder_in_another_model(monkeypatch):
    theirs = hf.pair("BertModel")[0].eval()
    encoder = fastbert.BertEncoder(theirs.config).eval()
    encoder.load_state_dict(theirs.encoder.state_dict())
    torchs, x = F.linear, torch.randn(2, 5, 32)
    monkeypatch.setattr(F, "linear", lambda *inputs: 1.25 * torchs(*inputs))
    with torch.no_grad():
        hf.assert_near(encoder(x)[0], theirs.encoder(x)[0], torch.float32, "last_hidden_state")


@pytest.mark.parametrize("training", [True, False])
def test_heads_that_were_cut_off_by_hand(training):
    theirs, ours = (model.train(training) for model in hf.pair("BertModel"))
    given = hf.arguments("BertModel")
    kept = hf.kept_tokens(given["attention_mask"])
    states = []
    for model in (theirs, ours):
        for layer in model.encoder.layer:
            attention, out = layer.attention.self, layer.attention.output.dense
            for linear in (attention.query, attention.key, attention.value):
                linear.weight, linear.bias = (nn.Parameter(p[:16].detach()) for p in (linear.weight, linear.bias))
            out.weight = nn.Parameter(out.weight[:, :16].detach())
            attention.num_attention_heads = 2
            if hasattr(attention, "all_head_size"):  # transformers 4 reads it
                attention.all_head_size = 16
        with torch.set_grad_enabled(training):
            states.append(model(**given).last_hidden_state[kept])
    hf.assert_near(states[1], states[0], torch.float32, "last_hidden_state")


@pytest.mark.parametrize(
    "name", ["BertForSequenceClassification", "BertForTokenClassification", "BertForMultipleChoice"]
)
def test_another_dropout_before_the_classifier_is_called(name):
    torch.manual_seed(0)
    theirs, ours = hf.pair(name)
    given, outputs = hf.arguments(name), []
    for model in (theirs, ours):
        model.dropout = nn.Sequential(nn.Dropout(0.0), nn.Tanh())
        outputs.append(model(**given).logits)
    kept = hf.kept_tokens(given["attention_mask"]) if name == "BertForTokenClassification" else ...
    hf.assert_near(outputs[1][kept], outputs[0][kept], torch.float32, "logits")


class _Half(nn.Module):
    def __init__(self, alone):
        super().__init__()
        self.alone = alone

    def forward(self, x, *_, **__):
        return x / 2 if self.alone else (x / 2,)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("recompute", [True, False])
def test_a_module_in_a_layers_place_may_return_the_states_alone(training, recompute):
    theirs, ours = (model.train(training) for model in hf.pair("BertModel"))
    given, states = hf.arguments("BertModel"), []
    for model in (theirs, ours):
        model.encoder.layer[1] = _Half(alone=model is ours or V5)  # transformers 4 takes tuples
        if recompute and model is ours:
            model.gradient_checkpointing_enable()
        states.append(model(**given).last_hidden_state[hf.kept_tokens(given["attention_mask"])])
    hf.assert_near(states[1], states[0], torch.float32, "last_hidden_state")
