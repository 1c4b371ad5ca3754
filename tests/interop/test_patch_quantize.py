"""`fastbert.quantize` of patched models of transformers: near their float selves, by the one call of int8 weights."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref

import pytest
import torch
import transformers
from torch import Tensor, nn

import fastbert
from fastbert import _native, ops
from fastbert.errors import CheckpointError, InputError
from fastbert.modules.quantized_linear import QuantizedLinear
from fastbert.modules.said import say_once

pytestmark = pytest.mark.skipif(_native.why_missing() is not None, reason=str(_native.why_missing()))

SIZES = {
    **{"vocab_size": 90, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 144},
    **{"max_position_embeddings": 42, "initializer_range": 0.15, "num_labels": 5},
}
DISTIL = {
    **{"vocab_size": 90, "dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 144, "max_position_embeddings": 42},
    **{"initializer_range": 0.15, "num_labels": 5},
}
# The head's class and the configuration of each family.
FAMILIES = {
    "bert": ("BertForTokenClassification", "BertConfig", SIZES),
    "roberta": ("RobertaForTokenClassification", "RobertaConfig", SIZES | {"pad_token_id": 1}),
    "xlm_roberta": ("XLMRobertaForTokenClassification", "XLMRobertaConfig", SIZES | {"pad_token_id": 1}),
    "camembert": ("CamembertForTokenClassification", "CamembertConfig", SIZES | {"pad_token_id": 1}),
    "electra": ("ElectraForTokenClassification", "ElectraConfig", SIZES | {"embedding_size": 24}),
    "albert": ("AlbertForTokenClassification", "AlbertConfig", SIZES | {"embedding_size": 24, "num_hidden_groups": 2}),
    "mpnet": ("MPNetForTokenClassification", "MPNetConfig", SIZES | {"pad_token_id": 1}),
    "distilbert": ("DistilBertForTokenClassification", "DistilBertConfig", DISTIL),
    "rembert": ("RemBertForTokenClassification", "RemBertConfig", SIZES | {"input_embedding_size": 24}),
    "layoutlm": ("LayoutLMForTokenClassification", "LayoutLMConfig", SIZES),
}
IDS = torch.randint(5, 90, (6, 30), generator=torch.Generator().manual_seed(1))
MASK = (torch.arange(30) < torch.tensor([30, 3, 17, 30, 9, 1])[:, None]).long()
PER_LAYER = 6


def new(family: str = "bert") -> nn.Module:
    head, config, sizes = FAMILIES[family]
    torch.manual_seed(3)
    return getattr(transformers, head)(getattr(transformers, config)(**sizes)).eval()


def int8(family: str = "bert") -> nn.Module:
    return fastbert.quantize(fastbert.patch(new(family)))


def logits(model: nn.Module, mask: Tensor = MASK, **options) -> Tensor:
    return model(IDS, attention_mask=mask, **options).logits[mask.bool()]


def spread(got: Tensor, exact: Tensor) -> float:
    """Root mean square of the difference in units of the truth's spread."""
    return float((got - exact).detach().square().mean().sqrt() / exact.detach().std())


def layers_of(model: nn.Module) -> list[QuantizedLinear]:
    return [module for module in model.modules() if isinstance(module, QuantizedLinear)]


@pytest.fixture
def calls(monkeypatch):
    """Whether each pass of an encoder was the one call of int8 weights."""
    counted = []
    true = ops.fused_encoder

    def count(x, layers, *args, **kwargs):
        states = true(x, layers, *args, **kwargs)
        counted.append(states is not None and ops.is_int8(layers))
        return states

    monkeypatch.setattr(ops, "fused_encoder", count)
    return counted


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family(family, calls, caplog):
    say_once.cache_clear()
    model = new(family)
    exact, others = logits(model), [p.clone() for name, p in model.named_parameters() if "layer" not in name]
    assert fastbert.quantize(fastbert.patch(model)) is model
    assert len(layers_of(model)) == 2 * PER_LAYER
    got = logits(model)  # also where autograd is not switched off: nothing here has a gradient
    assert calls == [True]
    assert 0 < spread(got, exact) < 0.05
    assert not got.requires_grad
    kept = [p for name, p in model.named_parameters() if "layer" not in name]
    assert all(map(torch.equal, kept, others))
    # The probe's pass is none that somebody should hear of.
    assert not [record for record in caplog.records if record.name == "fastbert"]


@pytest.mark.parametrize("why", ["attentions", "left padding", "a hook", "unpatched"])
def test_passes_of_transformers_own_code_are_int8_too(why, calls):
    exact, model = logits(new()), int8()
    mask = MASK
    if why == "attentions":
        got = logits(model, output_attentions=True)
    elif why == "left padding":
        mask = MASK.flip(1)
        exact, got = logits(new(), mask), logits(model, mask)
    elif why == "a hook":
        seen = []
        model.bert.encoder.layer[1].attention.self.key.register_forward_hook(lambda *_: seen.append(1) and None)
        got = logits(model)
        assert seen == [1]
    else:
        got = logits(fastbert.unpatch(model))
    assert calls == []
    assert 0 < spread(got, exact) < 0.05


def test_channels_that_are_far_larger_stay_apart():
    """They are found by a pass through the family's own embeddings."""
    model = fastbert.patch(new("roberta"))
    with torch.no_grad():
        model.roberta.embeddings.LayerNorm.weight[7] = 40.0
    exact = logits(model)
    fastbert.quantize(model)
    query = model.roberta.encoder.layer[0].attention.self.query
    assert 7 in ops.unpack_int8(query.packed).outliers
    assert spread(logits(model), exact) < 0.05


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_few_positions(family):
    """Fewer than the probe's tokens; of RoBERTa's those up to the pads' are nobody's."""
    head, config, sizes = FAMILIES[family]
    small = getattr(transformers, config)(**sizes | {"max_position_embeddings": 12})
    model = fastbert.patch(getattr(transformers, head)(small).eval())
    ids = IDS[:, :9]
    exact = model(ids).logits
    assert 0 < spread(fastbert.quantize(model)(ids).logits, exact) < 0.05


def test_a_table_that_was_cut():
    model = fastbert.patch(new())
    model.bert.embeddings.word_embeddings = nn.Embedding.from_pretrained(torch.randn(50, 64))
    ids = IDS % 50
    exact = model(ids).logits
    assert model.config.vocab_size == 90
    assert 0 < spread(fastbert.quantize(model)(ids).logits, exact) < 0.05


@pytest.mark.parametrize("after_a_pass", [False, True], ids=["at once", "after a pass"])
def test_float_weights_are_gone_when_it_returns(after_a_pass):
    model = fastbert.patch(new())
    if after_a_pass:
        logits(model)
    weight = weakref.ref(model.bert.encoder.layer[0].output.dense.weight)
    fastbert.quantize(model)
    gc.collect()
    assert weight() is None


def test_it_is_for_inference():
    model = int8()
    with pytest.raises(InputError, match=r"expected eval\(\), got train\(\)"):
        model.train()
    assert not any(module.training for module in model.bert.modules())
    assert not any(p.requires_grad for p in model.parameters())
    with pytest.raises(InputError, match="which is quantised already"):
        fastbert.quantize(model)


@pytest.mark.parametrize("how", ["save_pretrained", "state_dict", "unpatched"])
def test_it_is_not_saved_as_if_it_were_float(how, tmp_path):
    model = int8()
    save = model.state_dict if how == "state_dict" else lambda: model.save_pretrained(tmp_path / "model")
    if how == "unpatched":
        fastbert.unpatch(model)
    with pytest.raises(CheckpointError, match="save the model before quantize"):
        save()
    assert not list(tmp_path.rglob("*.safetensors"))


@pytest.mark.parametrize("strict", [True, False])
def test_float_weights_are_not_loaded_around_it(strict):
    """torch passes over what a layer has no name for where it is not strict: the rest alone would be new."""
    model, other = int8(), new()
    with pytest.raises(CheckpointError, match=r"query: expected int8 weights to load, .* load them before quantize$"):
        model.load_state_dict(other.state_dict(), strict=strict)
    head = {name: tensor for name, tensor in other.state_dict().items() if name.startswith("classifier")}
    model.load_state_dict(head, strict=False)
    assert torch.equal(model.classifier.weight, other.classifier.weight)


def _pickled(model: nn.Module) -> nn.Module:
    return pickle.loads(pickle.dumps(model))


@pytest.mark.parametrize("how", [copy.deepcopy, _pickled])
def test_copies_compute_the_same(how, calls):
    model = int8()
    assert torch.equal(logits(how(model)), logits(model))
    assert calls == [True, True]


def test_adapters_stay_as_they_are(calls):
    model = new()
    query = model.bert.encoder.layer[0].attention.self.query
    model.bert.encoder.layer[0].attention.self.query = nn.Sequential(query)
    exact = logits(fastbert.patch(model))
    fastbert.quantize(model)
    assert len(layers_of(model)) == 2 * PER_LAYER - 1
    assert model.bert.encoder.layer[0].attention.self.query[0] is query
    assert 0 < spread(logits(model), exact) < 0.05
    assert True not in calls


def test_bfloat16():
    model = new()
    exact = logits(model)
    fastbert.quantize(fastbert.patch(model).bfloat16())
    got = logits(model)
    assert got.dtype == torch.bfloat16
    assert spread(got.float(), exact) < 0.08


REFUSED = {
    "not patched": (lambda: new(), r"transformers' modules: quantize\(fastbert.patch\(model\)\)$"),
    "torch's": (
        lambda: fastbert.patch(nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, activation="gelu"), 1).eval()),
        "encoders of transformers, got torch's TransformerEncoder",
    ),
    "hooks": (lambda: _watched(fastbert.patch(new())), "dense layers have hooks, as accelerate's, or"),
    "not finite": (lambda: _with_nan(fastbert.patch(new())), "finite"),
}


def _watched(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(lambda *_: None)
    return model


def _with_nan(model: nn.Module) -> nn.Module:
    with torch.no_grad():
        model.bert.encoder.layer[1].output.dense.weight[2, 3] = torch.nan
    return model


@pytest.mark.parametrize("why", REFUSED)
def test_what_cannot_be_quantised_is_refused_and_unchanged(why):
    make, message = REFUSED[why]
    model = make().train()
    with pytest.raises(InputError, match=message):
        fastbert.quantize(model)
    assert not layers_of(model)
    assert all(module.training for module in model.modules())
    assert all(p.requires_grad for p in model.parameters())
