"""Hooks on what holds other modules, and on all modules at once: a model without its head, the encoder, ``cls``."""

from __future__ import annotations

import functools

import hf_parity as hf
import pytest
import tiny_gpt
import torch
from torch import nn

import fastbert
from fastbert.errors import InputError
from fastbert.packing import PackedBatch

HEADS = (
    *("BertForPreTraining", "BertForMaskedLM", "BertForNextSentencePrediction", "BertForSequenceClassification"),
    *("BertForTokenClassification", "BertForQuestionAnswering"),
)
every_head = pytest.mark.parametrize("name", HEADS)


def _called(model: nn.Module) -> list[str]:
    """The names of the modules that a pass of transformers' model of the same names would call: all but lists."""
    return [name for name, module in model.named_modules() if not isinstance(module, nn.ModuleList)]


def _packed() -> PackedBatch:
    ids = [torch.tensor([2, 7, 3, 9]), torch.tensor([2, 5, 3])]
    return PackedBatch.from_sequences(ids)


def _run(model: nn.Module, packed: bool) -> list[torch.Tensor]:
    out = model(_packed()) if packed else model(**hf.arguments(type(model).__name__))
    return [value for value in out.values() if value is not None]


@every_head
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("register", ["register_forward_hook", "register_forward_pre_hook"])
def test_a_hook_fires_on_every_module_and_changes_nothing(name, packed, register):
    _, ours = hf.pair(name)
    expected, seen = _run(ours, packed), set()
    for path in _called(ours):
        getattr(ours.get_submodule(path), register)(lambda *_, path=path: seen.add(path))
    for x, y in zip(_run(ours, packed), expected, strict=True):
        hf.assert_near(x, y, torch.float32, name)
    assert seen == set(_called(ours))


def test_a_hook_on_all_modules_fires_on_every_module():
    _, ours = hf.pair("BertForPreTraining")
    seen = []
    handle = nn.modules.module.register_module_forward_hook(lambda module, *_: seen.append(module))
    try:
        ours(**hf.inputs())
    finally:
        handle.remove()
    assert {id(module) for module in seen} == {id(ours.get_submodule(path)) for path in _called(ours)}


@every_head
@pytest.mark.parametrize("mask", ["prefix", "left"])
def test_a_hook_on_the_model_below_sees_and_steers_what_it_does_in_transformers(name, mask):
    theirs, ours = hf.pair(name)
    given, seen = hf.arguments(name, mask), {}

    def steer(module, args, out):
        seen[module is ours.bert] = out
        out.last_hidden_state = out.last_hidden_state * 2 - 1
        if out.get("pooler_output") is not None:
            out.pooler_output = out.pooler_output * 3
        return out

    for model in (theirs, ours):
        model.bert.register_forward_hook(steer)
    theirs, ours = theirs(**given), ours(**given)
    kept = given["attention_mask"] != 0
    for field in ("last_hidden_state", "pooler_output"):
        a, b = (seen[who].get(field) for who in (True, False))
        if field == "last_hidden_state" and b is not None:
            a, b = a[kept], b[kept]
        assert (a is None) == (b is None)
        if b is not None:
            hf.assert_near(a, b, torch.float32, field)
    for key in theirs:
        a, b = ours[key], theirs[key]
        if a.shape[:2] == kept.shape:
            a, b = a[kept], b[kept]
        hf.assert_near(a, b, torch.float32, key)


def test_the_loss_reaches_what_a_hook_on_the_model_below_saw():
    _, ours = hf.pair("BertForTokenClassification")
    seen = []
    ours.bert.register_forward_hook(lambda module, args, out: seen.append(out.last_hidden_state))
    given = hf.arguments("BertForTokenClassification")
    (gradient,) = torch.autograd.grad(ours(**given).logits.sum(), seen[0])
    expected = (given["attention_mask"] != 0)[..., None] * ours.classifier.weight.sum(0)
    torch.testing.assert_close(gradient, expected)


def test_hooks_on_the_encoder_steer_it_and_hear_its_gradient():
    theirs, ours = hf.pair("BertForSequenceClassification")
    given, seen = hf.arguments("BertForSequenceClassification"), []
    for model in (theirs, ours):
        model.bert.encoder.register_forward_pre_hook(lambda module, args: (args[0] * 1.5, *args[1:]))
    ours.bert.encoder.register_full_backward_hook(lambda module, into, out: seen.append((into[0], out[0])))
    expected, got = theirs(**given), ours(**given)
    hf.assert_near(got.logits, expected.logits, torch.float32, "logits")
    got.logits.sum().backward()
    tokens = int((given["attention_mask"] != 0).sum())
    assert [tuple(x.shape) for x in seen[0]] == [(tokens, 32), (tokens, 32)]


def test_a_forward_in_the_place_of_the_model_belows_is_called():
    _, ours = hf.pair("BertForSequenceClassification")
    expected, own, calls = ours(**hf.inputs()).logits, ours.bert.forward, []

    @functools.wraps(own)
    def counted(*args, **kwargs):
        calls.append(1)
        return own(*args, **kwargs)

    ours.bert.forward = counted
    assert torch.equal(ours(**hf.inputs()).logits, expected)
    assert calls == [1]
    ours.bert.forward = lambda *_, **__: None
    with pytest.raises(InputError, match="a forward that replaces BertModel's must call the original"):
        ours(**hf.inputs())


def test_hooks_of_a_gpt_fire():
    ours = fastbert.GPTForPreTraining(fastbert.GPTConfig(**tiny_gpt.SIZES)).eval()
    ids, seen = tiny_gpt.ids(2, 7), []
    expected = ours(ids).logits
    for path in _called(ours):
        ours.get_submodule(path).register_forward_hook(lambda *_, path=path: seen.append(path))
    hf.assert_near(ours(ids).logits, expected, torch.float32, "logits")
    assert set(seen) == set(_called(ours))
