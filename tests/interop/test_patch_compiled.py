"""`fastbert.patch` and `torch.compile`, in either order: a compiled model is computed by fastbert's kernels too."""

from __future__ import annotations

import copy

import hf_parity as hf
import pytest
import torch
from patched import arguments, twins
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

import fastbert
from fastbert import _native
from fastbert.errors import InputError
from fastbert.modules.said import say_once

SHAPES = ((4, 11), (3, 7), (2, 9), (4, 5))


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def cut(rows: int, columns: int) -> dict[str, torch.Tensor]:
    """A padded batch of this shape, with labels for a class of each sequence."""
    given = {key: x[:rows] for key, x in arguments("BertForSequenceClassification").items()}
    return {key: x[:, :columns] if x.dim() == 2 else x for key, x in given.items()}


@pytest.mark.parametrize("train", [False, True], ids=["eval", "train"])
def test_one_recompile_over_all_shapes_and_the_same_bits(train):
    """With dropout in training, of which every pass draws another and a seed the same. Bits but for rounding where
    inference takes Winograd's products, which a compiled pass does not.
    """
    exact = train or "winograd" not in (_native.isa() or "")
    rates = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    # Which transformers would write into the configuration in the first pass: torch 2.6 then compiles once more.
    kind = {"problem_type": "single_label_classification"}
    ours = twins("BertForSequenceClassification", num_hidden_layers=1, **rates, **kind)[1].train(train)
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(ours, backend=counter)
    for shape in SHAPES:
        found = []
        for model in (compiled, ours):
            torch.manual_seed(0)
            ours.zero_grad()
            out = model(**cut(*shape))
            out.loss.backward()
            found.append([out.logits, *(p.grad.clone() for p in ours.parameters())])
        for a, b in zip(*found, strict=True):
            assert torch.equal(a, b) if exact else torch.allclose(a, b, rtol=1e-5, atol=1e-6)
    assert 1 <= counter.frame_count <= 2
    given = cut(4, 11)
    assert torch.equal(compiled(**given).logits, compiled(**given).logits) is not train


def _compiled_before(model):
    compiled = torch.compile(model, backend="eager")
    compiled(**cut(4, 11))  # a graph of transformers' code, which no longer holds
    fastbert.patch(model)
    return compiled


def _compiled_in_place(model):
    fastbert.patch(model).compile(backend="eager")
    return model


def _its_encoder_alone(model):
    model.bert = torch.compile(model.bert, backend="eager")
    return fastbert.patch(model)


@pytest.mark.parametrize(
    "way",
    [
        _compiled_before,
        _compiled_in_place,
        _its_encoder_alone,
        lambda model: fastbert.patch(torch.compile(model, backend="eager")),
        lambda model: torch.compile(fastbert.patch(model), backend="eager", dynamic=True),
    ],
    ids=["before", "in_place", "encoder", "patched_after", "dynamic"],
)
def test_in_whatever_order(way, passes):
    theirs, _ = hf.pair("BertForSequenceClassification", num_hidden_layers=1)
    given = cut(4, 11)
    with torch.no_grad():
        wanted = theirs(**given).logits
        compiled = way(copy.deepcopy(theirs))
        assert not passes
        hf.assert_near(compiled(**given).logits, wanted, torch.float32, "logits")
    assert len(passes) == 1


def test_unpatched_it_is_transformers_again(passes):
    _, ours = twins("BertModel", num_hidden_layers=1)
    compiled = torch.compile(ours, backend="eager")
    given = {key: x for key, x in arguments("BertModel").items() if x is not None}
    with torch.no_grad():
        compiled(**given)
        assert len(passes) == 1
        fastbert.unpatch(ours)
        assert torch.equal(compiled(**given).last_hidden_state, ours(**given).last_hidden_state)
    assert len(passes) == 1


@pytest.mark.parametrize(
    ("name", "train"),
    [
        pytest.param("BertModel", False, id="BertModel-eval"),
        pytest.param("BertModel", True, id="BertModel-train", marks=pytest.mark.slow),
        pytest.param("BertForSequenceClassification", False, id="a head-eval", marks=pytest.mark.slow),
        pytest.param("BertForSequenceClassification", True, id="a head-train"),  # which has the model below it
    ],
)
def test_one_whole_graph_is_transformers_own(name, train, passes, caplog):
    say_once.cache_clear()
    # Which transformers would write into the configuration; torch 2.6 refuses that in a whole graph.
    kind = {"problem_type": "single_label_classification"}
    theirs, ours = (model.train(train) for model in twins(name, num_hidden_layers=1, **kind))
    given = {key: x for key, x in arguments(name).items() if x is not None}
    found = []
    for model in (theirs, ours):
        torch._dynamo.reset()
        counter = CompileCounterWithBackend("aot_eager")
        torch.manual_seed(0)
        out = torch.compile(model, fullgraph=True, backend=counter)(**given)[0]
        assert counter.frame_count == 1
        out.square().mean().backward()
        found.append([out, *(p.grad for p in model.parameters() if p.grad is not None)])
    torch.testing.assert_close(*found)
    assert not passes
    (told,) = [record.message for record in caplog.records if "whole graph" in record.message]
    assert "computed by transformers' own code, with padding; leave fullgraph=True out" in told
    torch._dynamo.reset()
    torch.compile(ours, backend="eager")(**given)
    assert len(passes) == 1


def test_one_whole_graph_of_torchs_encoder(caplog):
    say_once.cache_clear()
    layer = nn.TransformerEncoderLayer(32, 4, 48, dropout=0.0, activation="gelu", batch_first=True)
    theirs = nn.TransformerEncoder(layer, 2)
    x, ignore = torch.randn(2, 5, 32), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    wanted = theirs(x, src_key_padding_mask=ignore)
    compiled = torch.compile(fastbert.patch(theirs), fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x, src_key_padding_mask=ignore), wanted)
    assert "computed by torch's own code" in caplog.text


@pytest.mark.parametrize(("place", "name"), [("encoder", "BertEncoder"), ("encoder.layer.1", "BertLayer")])
def test_a_compiled_module_in_the_place_of_a_part_is_refused_in_words(place, name):
    theirs, _ = twins("BertModel")
    theirs.set_submodule(place, torch.compile(theirs.get_submodule(place), backend="eager"))
    with pytest.raises(InputError, match=f"module is in the place of its {name}; compile the whole model instead, or"):
        fastbert.patch(theirs)


def test_torchs_encoder():
    layer = nn.TransformerEncoderLayer(32, 4, 48, dropout=0.0, activation="gelu", batch_first=True)
    ours = fastbert.patch(nn.TransformerEncoder(layer, 2))
    x, ignore = torch.randn(2, 5, 32), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    compiled = torch.compile(ours, backend="eager")(x, src_key_padding_mask=ignore)
    assert torch.equal(compiled, ours(x, src_key_padding_mask=ignore))
    assert not compiled[ignore].any()  # torch's own code computes those in training
