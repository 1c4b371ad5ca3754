"""`fastbert.patch` beside code that puts its own in the place of functions of torch and transformers: it counts."""

from __future__ import annotations

import functools

import hf_parity as hf
import pytest
import torch
import torch.nn.functional as F
from patched import V5, arguments, assert_same, twins
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import modeling_utils
from transformers.models.bert import modeling_bert

import fastbert
from fastbert.modules.said import say_once

KEPT = hf.kept_tokens(hf.masks()["prefix"])


@pytest.fixture(autouse=True)
def every_reason_is_said():
    say_once.cache_clear()


class _CoarseWeights(TorchFunctionMode):
    """Computes dense layers with other weights, as NNCF does with those that it has compressed."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is F.linear:
            args = (args[0], (args[1] * 4).round() / 4, *args[2:])
        return function(*args, **(kwargs or {}))


class _CoarseProducts(TorchDispatchMode):
    """The same below autograd."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        return (out * 4).round() / 4 if function is torch.ops.aten.addmm.default else out


@pytest.mark.parametrize("mode", [_CoarseWeights, _CoarseProducts])
def test_a_mode_that_replaces_calls_of_torch_replaces_them(mode, caplog, only_ours):
    theirs, ours = twins("BertModel")
    given = arguments("BertModel")
    with torch.no_grad():
        plain = theirs(**given)
        with mode():
            wanted, got = theirs(**given), ours(**given)
        assert_same(got, wanted, "prefix")
        assert (plain[0] - wanted[0])[KEPT].abs().max() > 1e-2
        assert f"it runs under a {mode.__name__}, a mode that may replace" in caplog.text
        only_ours()
        with torch.device("cpu"), fastbert.batch_invariant():  # torch's mode, and ours
            assert_same(ours(**given), plain, "prefix")


def _doubling(function):
    return lambda *args, **kwargs: 2 * function(*args, **kwargs)


def _sharper(function):
    """An attention whose scores are doubled."""
    return lambda module, query, *args, **kwargs: function(module, 2 * query, *args, **kwargs)


def _sees_the_past(*args, **kwargs):
    return torch.ones(hf.LENGTH, hf.LENGTH, dtype=torch.bool).tril().expand(hf.BATCH, 1, -1, -1)


_OF_TORCH = {
    "linear": (F, _doubling),
    "layer_norm": (F, _doubling),
    "dropout": (F, _doubling),
    "softmax": (F, _doubling),
    "matmul": (torch, _doubling),
}
_OF_TRANSFORMERS = {
    "apply_chunking_to_forward": (modeling_bert, _doubling),
    "eager_attention_forward": (modeling_bert, _sharper),
    "create_bidirectional_mask": (modeling_bert, lambda function: _sees_the_past),
}


@pytest.mark.parametrize("name", [*_OF_TORCH, *(_OF_TRANSFORMERS if V5 else ["apply_chunking_to_forward"])])
def test_a_function_that_was_replaced_counts_while_it_is(name, monkeypatch, caplog, only_ours):
    theirs, ours = twins("BertModel", attention="eager")
    given = arguments("BertModel")
    room, change = {**_OF_TORCH, **_OF_TRANSFORMERS}[name]
    with torch.no_grad():
        plain = ours(**given)
        with monkeypatch.context() as changed:
            changed.setattr(room, name, change(getattr(room, name)))
            wanted = theirs(**given)
            assert_same(ours(**given), wanted, "prefix")
        assert (plain[0] - wanted[0])[KEPT].abs().max() > 1e-3
        assert (
            f"{name} {'' if room in (F, torch) else 'of transformers.models.bert.modeling_bert '}has been"
            in caplog.text
        )
        only_ours()
        assert_same(ours(**given), plain, "prefix")


@pytest.mark.skipif(not V5, reason="the module of BERT has no table of attention functions")
def test_attention_functions_of_the_module_alone(monkeypatch, caplog):
    """As lxt replaces them: the table that all models share stays as it is."""
    theirs, ours = twins("BertModel", attention="sdpa")
    given = arguments("BertModel")
    shared = modeling_utils.ALL_ATTENTION_FUNCTIONS
    own = type(shared)()
    own["sdpa"] = _sharper(shared["sdpa"])
    monkeypatch.setattr(modeling_bert, "ALL_ATTENTION_FUNCTIONS", own)
    assert_same(ours(**given), theirs(**given), "prefix")
    assert "attention implementation sdpa is not one of transformers" in caplog.text


@pytest.mark.parametrize("name", ["scaled_dot_product_attention", "multi_head_attention_forward"])
def test_a_function_that_torchs_encoder_calls(name, monkeypatch):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    x = torch.randn(2, 5, 16)
    plain, before = model(x), getattr(F, name)

    def changed(*args, **kwargs):
        out = before(*args, **kwargs)
        return (2 * out[0], *out[1:]) if isinstance(out, tuple) else 2 * out

    monkeypatch.setattr(F, name, changed)
    wanted = model(x)
    hf.assert_near(fastbert.patch(model)(x), wanted, torch.float32, name)
    assert (plain - wanted).abs().max() > 1e-3


@pytest.mark.parametrize("of_class", [True, False])
@pytest.mark.parametrize("place", ["encoder.layer.1", ""])
def test_a_method_that_a_forward_calls(place, of_class, monkeypatch, caplog, only_ours):
    name = "feed_forward_chunk" if place else "_create_attention_masks" if V5 else "get_extended_attention_mask"
    theirs, ours = twins("BertModel", attention="sdpa" if V5 else "eager")
    given = arguments("BertModel")
    with torch.no_grad():
        plain = ours(**given)
        with monkeypatch.context() as changed:
            for model in (theirs, ours):
                module = model.get_submodule(place)
                if of_class and model is ours:
                    continue  # the class is theirs too
                before = getattr(type(module) if of_class else module, name)
                changed.setattr(type(module) if of_class else module, name, _halved(before, masks=not place))
            wanted = theirs(**given)
            assert_same(ours(**given), wanted, "prefix")
        assert (plain[0] - wanted[0])[KEPT].abs().max() > 1e-3
        assert f"{name} has been replaced" in caplog.text
        only_ours()
        assert_same(ours(**given), plain, "prefix")


def _halved(method, masks):
    """A method whose tensor is halved, or that lets a token see no token behind it."""

    @functools.wraps(method)  # transformers looks at its signature
    def changed(*args, **kwargs):
        out = method(*args, **kwargs)
        if not masks:
            return out / 2
        past = _sees_the_past()
        if not V5:
            return torch.zeros(past.shape).masked_fill(~past, torch.finfo(torch.float32).min)
        return (past, *out[1:])

    return changed


@pytest.mark.parametrize("of_class", [True, False])
def test_a_method_that_torchs_layer_calls(of_class, monkeypatch):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    x = torch.randn(2, 5, 16)
    plain = model(x)
    place = nn.TransformerEncoderLayer if of_class else model.layers[1]
    monkeypatch.setattr(place, "_ff_block", _halved(place._ff_block, masks=False))
    wanted = model(x)
    hf.assert_near(fastbert.patch(model)(x), wanted, torch.float32, "_ff_block")
    assert (plain - wanted).abs().max() > 1e-3
