"""`fastbert.patch` of ALBERT (Lan et al. 2020), whose layers share their parameters: one packed copy, one gradient."""

from __future__ import annotations

import copy

import pytest
import torch
import transformers
from kept import IDS, MASK, assert_copied_and_saved, assert_near_each, gradients, kept
from patched import V5
from torch import nn

import fastbert
from fastbert import _native
from fastbert.errors import InputError
from fastbert.interop.patch import is_patched
from fastbert.modules import quantized
from fastbert.ops import _cpu_encoder, _cpu_encoder_gradient

_native_only = pytest.mark.skipif(_native.why_missing() is not None, reason=str(_native.why_missing()))

SIZES = {
    **{"vocab_size": 90, "embedding_size": 16, "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4},
    **{"intermediate_size": 144, "max_position_embeddings": 42},
}
# Groups of layers, and layers in a group, which version 4 shows as one.
SHARED = [(1, 1), (2, 1), (4, 1), *([(1, 2), (2, 2)] if V5 else [])]


def new(head: str = "AlbertModel", **changes) -> nn.Module:
    torch.manual_seed(3)
    model = getattr(transformers, head)(transformers.AlbertConfig(**SIZES | changes)).eval()
    for p in model.parameters():
        nn.init.normal_(p, 1.0 if p.dim() == 1 else 0.0, 0.15)
    return model


def twins(head: str = "AlbertModel", **changes) -> tuple[nn.Module, nn.Module]:
    theirs = new(head, **changes)
    return theirs, fastbert.patch(copy.deepcopy(theirs))


@pytest.mark.parametrize(("groups", "inside"), SHARED)
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_groups_of_layers(groups, inside, attention, passes):
    theirs, ours = twins(num_hidden_groups=groups, inner_group_num=inside, attn_implementation=attention)
    with torch.no_grad():
        assert_near_each(kept(ours, output_hidden_states=True), kept(theirs, output_hidden_states=True))
    assert len(passes) == 1
    # The second is recorded op by op, since a backward pass has come.
    for _ in range(2):
        assert_near_each(gradients(ours), gradients(theirs), 1e-4)


@pytest.mark.skipif(V5, reason="version 5 shows every layer's state")
def test_layers_inside_a_group_are_refused_in_version_4():
    model = new(inner_group_num=2)
    with pytest.raises(InputError, match=r"^AlbertModel cannot be patched: inner_group_num must be 1 .*, got 2$"):
        fastbert.patch(model)
    assert not is_patched(model)


@_native_only
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("quantized", [False, True])
def test_shared_weights_are_packed_once(groups, quantized, monkeypatch):
    model = fastbert.patch(new(num_hidden_groups=groups))
    model = fastbert.quantize(model) if quantized else model
    made, native = [], _native.extension()

    class Extension:
        def __getattr__(self, name):
            return getattr(native, name)

        def Encoder(self, *args):
            encoder = native.Encoder(*args)
            made.append(args[4])
            return encoder

    monkeypatch.setattr(_cpu_encoder._native, "extension", Extension)
    with torch.no_grad():
        kept(model)
    assert made == [[0, 0, 0, 0] if groups == 1 else [0, 0, 1, 1]]


@_native_only
@pytest.mark.skipif(
    not hasattr(torch._C._autograd, "_top_saved_tensors_default_hooks"), reason="this torch is recorded op by op"
)
def test_a_shared_weight_has_one_gradient(monkeypatch):
    model, given = fastbert.patch(new()), []
    true = _cpu_encoder_gradient._Deferred.apply
    monkeypatch.setattr(_cpu_encoder_gradient._Deferred, "apply", lambda *args: given.append(args[5:]) or true(*args))
    gradients(model)
    assert [len(tensors) for tensors in given] == [16]


@_native_only
def test_int8():
    theirs, model = twins()
    exact, got = kept(theirs)[0], kept(fastbert.quantize(model))[0]
    assert 0 < float((got - exact).detach().square().mean().sqrt() / exact.detach().std()) < 0.05
    held = [m for m in model.modules() if type(m).__name__ == "QuantizedLinear"]
    assert len(held) == 6


def test_the_largest_channels_are_those_of_all_layers_that_share_a_weight():
    linear, first, last = nn.Linear(64, 8), torch.zeros(1, 64), torch.zeros(1, 64)
    first[0, : quantized.OUTLIERS] = 9.0
    last[0, quantized.OUTLIERS : 2 * quantized.OUTLIERS] = 1.0
    found = quantized._largest_channels([linear], lambda: (linear(first), linear(last)))[linear]
    assert sorted(found.tolist()) == list(range(quantized.OUTLIERS))


HEADS = {
    "AlbertForPreTraining": {"labels": IDS.masked_fill(MASK == 0, -100), "sentence_order_label": torch.arange(4) % 2},
    "AlbertForMaskedLM": {"labels": IDS.masked_fill(MASK == 0, -100)},
    "AlbertForSequenceClassification": {"labels": torch.arange(4) % 2},
    "AlbertForTokenClassification": {"labels": (IDS % 2).masked_fill(MASK == 0, -100)},
    "AlbertForQuestionAnswering": {"start_positions": torch.arange(4), "end_positions": torch.arange(4) + 1},
}


@pytest.mark.parametrize("head", HEADS)
def test_heads(head, passes):
    theirs, ours = twins(head, initializer_range=0.1)
    assert_near_each(kept(ours, **HEADS[head]), kept(theirs, **HEADS[head]), 1e-4)
    assert len(passes) == 1


def test_a_head_for_choices(passes):
    models = twins("AlbertForMultipleChoice")
    given = {"input_ids": IDS.view(2, 2, -1), "attention_mask": MASK.view(2, 2, -1), "labels": torch.tensor([1, 0])}
    theirs, ours = (model(**given) for model in models)
    assert_near_each([ours.loss, ours.logits], [theirs.loss, theirs.logits])
    assert len(passes) == 1


@pytest.mark.parametrize("family", ["albert", "distilbert"])
def test_a_layer_that_drops_in_one_branch_alone(family, passes):
    """ALBERT's layers drop nothing of their feed-forward branch, DistilBERT's nothing of their attention's."""
    if family == "albert":
        models = twins(hidden_dropout_prob=0.3, num_hidden_layers=2)
    else:
        torch.manual_seed(3)
        sizes = {"vocab_size": 90, "dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 144}
        theirs = transformers.DistilBertModel(
            transformers.DistilBertConfig(**sizes, dropout=0.3, attention_dropout=0.0)
        )
        models = theirs, fastbert.patch(copy.deepcopy(theirs))
    spreads = []
    with torch.no_grad():
        for model in models:
            embeddings = next(m for name, m in model.named_modules() if name.endswith("embeddings.dropout"))
            model.train()
            embeddings.p = 0.0  # whose elements would hide the layers'
            spreads.append(torch.stack([kept(model)[0] for _ in range(200)]).std(0).mean())
    assert len(passes) == 200
    # A branch more or less that drops something changes it by tens of percent.
    assert abs(float(spreads[1] / spreads[0]) - 1) < 0.05


def test_fewer_layers_by_the_configuration(passes):
    """The encoder of transformers reads their number in every pass."""
    models = twins()
    for model in models:
        model.config.num_hidden_layers = 3
    theirs, ours = (kept(model, output_hidden_states=True) for model in models)
    assert len(ours) == 2 + 4
    assert_near_each(ours, theirs)
    assert len(passes) == 1


def test_copies_and_files(tmp_path, passes):
    assert_copied_and_saved(*twins(), tmp_path)
    assert len(passes) == 3


def test_compiled(passes):
    theirs, ours = twins("AlbertForSequenceClassification")
    compiled = torch.compile(ours, backend="eager")
    assert_near_each(kept(compiled), kept(theirs))
    assert len(passes) == 1
