"""`fastbert.patch`: what is the caller's own in a model has its effect, or is said."""

from __future__ import annotations

import hf_parity as hf
import pytest
import torch
from patched import V5, arguments, assert_same, twins
from torch import nn

import fastbert
from fastbert.errors import InputError
from fastbert.interop.patch import _say_original


@pytest.fixture(autouse=True)
def _everything_is_said_again():
    _say_original.cache_clear()


def _assert_alike(change, mask="prefix", backward=True):
    """A patched model that has run, and transformers', to which the same is done: outputs and gradients."""
    theirs, ours = twins("BertModel", attention="sdpa")
    given, keep = arguments("BertModel", mask), hf.kept_tokens(hf.masks()[mask])
    before = ours(**given).last_hidden_state
    wanted, got = [], []
    for model, outputs in ((theirs, wanted), (ours, got)):
        torch.manual_seed(3)
        change(model)
        outputs.append(model(**given))
        if backward:
            outputs[0].last_hidden_state[keep].square().sum().backward()
        with torch.no_grad():
            outputs.append(model.eval()(**given))
    for x, y in zip(got, wanted, strict=True):
        assert_same(x, y, mask)
    assert (before - wanted[0].last_hidden_state)[keep].abs().max() > 1e-3, "the change changes nothing"
    if backward:
        hf.assert_same_gradients(ours, theirs, torch.float32)
    return ours


# --- attention ---


def _twice_as_sharp(module, query, *args, **kwargs):
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    return sdpa_attention_forward(module, 2 * query, *args, **kwargs)


def _sees_all(*args, **kwargs):
    return None


@pytest.mark.parametrize("name", ["sdpa", "of_mine"])
def test_attention_that_the_caller_registered(name, monkeypatch, caplog):
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    def register(model):
        monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, name, _twice_as_sharp)
        model.config._attn_implementation = name

    _assert_alike(register, "none")
    assert f"the attention named {name} is of someone's own" in caplog.text


@pytest.mark.skipif(not V5, reason="transformers 4 makes BERT's masks otherwise")
def test_masks_that_the_caller_registered(monkeypatch):
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    def register(model):
        monkeypatch.setitem(ALL_MASK_ATTENTION_FUNCTIONS._global_mapping, "sdpa", _sees_all)

    _assert_alike(register)


def _look_back_only(model):
    for layer in model.encoder.layer:
        layer.attention.self.is_causal = True


@pytest.mark.skipif(not V5, reason="transformers 4 does not ask the module")
def test_attention_that_was_made_causal():
    _assert_alike(_look_back_only, "none")


# --- sizes ---


def _without_the_first_head(layer):
    attention, rest = layer.attention.self, layer.attention.output
    for name in ("query", "key", "value"):
        dense = getattr(attention, name)
        dense.weight, dense.bias = nn.Parameter(dense.weight[8:].detach()), nn.Parameter(dense.bias[8:].detach())
    rest.dense.weight = nn.Parameter(rest.dense.weight[:, 8:].detach())
    attention.num_attention_heads, attention.all_head_size = 3, 24


@pytest.mark.parametrize("which", [slice(None), slice(1, 2)])
def test_heads_that_the_caller_pruned(which, caplog):
    def prune(model):
        for layer in model.encoder.layer[which]:
            _without_the_first_head(layer)

    pruned = _assert_alike(prune)
    assert "heads of a layer have been pruned" in caplog.text
    with pytest.raises(InputError, match="cannot be patched: heads of a layer have been pruned"):
        fastbert.patch(fastbert.unpatch(pruned))


def _widen(model):
    layer = model.encoder.layer[1]
    layer.intermediate.dense, layer.output.dense = nn.Linear(32, 80), nn.Linear(80, 32)


def test_a_layer_of_another_width():
    _assert_alike(_widen)
