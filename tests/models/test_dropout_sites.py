"""No two dropouts of a forward pass draw the same numbers, and each drops the share that the configuration says."""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from watched_key import Watched

import fastbert
from fastbert import BertConfig, PackedBatch, rng
from fastbert.gpt_config import GPT2Config, GPTConfig
from fastbert.models.gpt import GPTForPreTraining
from fastbert.models.gpt_heads import GPTForSequenceClassification

BERT = BertConfig(
    vocab_size=20,
    hidden_size=8,
    num_hidden_layers=3,
    num_attention_heads=2,
    intermediate_size=16,
    attention_probs_dropout_prob=0.2,
    hidden_dropout_prob=0.1,
    classifier_dropout=0.4,
)
SIZES = {"vocab_size": 20, "n_embd": 8, "n_layer": 3, "n_head": 2}
RATES = {"attn_pdrop": 0.2, "resid_pdrop": 0.1, "embd_pdrop": 0.4}


def classifier(**changes):
    return fastbert.BertForSequenceClassification(BertConfig.from_dict(BERT.to_dict(), **changes))


@pytest.mark.parametrize(
    ("make", "shares"),
    [
        # In each of three layers probabilities and two branches; the embeddings; and the head, where there is one.
        (lambda: fastbert.BertForSequenceClassification(BERT), {0.2: 3, 0.1: 6 + 1, 0.4: 1}),
        # A rate of 0 before the classifier is one of its own; without any it is that of the hidden states.
        (lambda: classifier(classifier_dropout=0.0), {0.2: 3, 0.1: 6 + 1}),
        (lambda: classifier(classifier_dropout=None), {0.2: 3, 0.1: 6 + 2}),
        (lambda: GPTForPreTraining(GPTConfig(**SIZES, **RATES)), {0.2: 3, 0.1: 6, 0.4: 1}),
        (lambda: GPTForPreTraining(GPT2Config(**SIZES, **RATES)), {0.2: 3, 0.1: 6, 0.4: 1}),
        (lambda: GPTForSequenceClassification(GPTConfig(**SIZES, **RATES)), {0.2: 3, 0.1: 6 + 1, 0.4: 1}),
    ],
    ids=["bert", "none before the head", "the usual before the head", "gpt", "gpt2", "gpt and a head"],
)
def test_every_dropout_has_a_place_and_a_share_of_its_own(make, shares):
    model, key = make().train(), Watched(3, 1)
    with rng.use(key):
        model(PackedBatch.from_sequences([[2, 7, 8, 3]]))
    assert rng.current() != key
    assert Counter(p for p, _ in key.asked) == shares
    assert len({site for _, site in key.asked}) == len(key.asked)


@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("copied", [False, True], ids=["shared", "copied"])
@pytest.mark.parametrize(
    ("make", "layers"),
    [
        (lambda: fastbert.BertForSequenceClassification(BERT), "bert.encoder.layer"),
        (lambda: GPTForPreTraining(GPT2Config(**SIZES, **RATES)), "h"),
    ],
    ids=["bert", "gpt2"],
)
def test_a_layer_in_several_places_drops_other_elements_in_each(make, layers, copied, recompute):
    """Layers stacked as copies of one (Gong et al. 2019), or shared by all places (Lan et al. 2020)."""
    model, key = make().train(), Watched(3, 1)
    base = next(m for m in model.modules() if hasattr(m, "h")) if layers == "h" else model
    stack = base.get_submodule(layers)
    for place in (1, 2):
        stack[place] = copy.deepcopy(stack[0]) if copied else stack[0]
    if recompute:
        model.gradient_checkpointing_enable()
    with rng.use(key):
        out = model(PackedBatch.from_sequences([[2, 7, 8, 3]]))
    sites = [site for _, site in key.asked]
    assert len(set(sites)) == len(sites)
    if recompute:
        key.asked.clear()
        out[0].sum().backward()
        assert key.asked
        assert {site for _, site in key.asked} <= set(sites)


def test_a_padded_pass_drops_probabilities_too():
    """As it is taken for who wants to see them."""
    model = fastbert.BertModel(BertConfig.from_dict(BERT.to_dict(), hidden_dropout_prob=0.0))
    ids = torch.arange(12).view(2, 6)
    with torch.no_grad():
        whole, dropped = (
            model.train(training)(ids, output_attentions=True).last_hidden_state for training in (False, True)
        )
    assert not torch.allclose(whole, dropped)


@dataclass(frozen=True)
class _AllBut(rng.DropoutKey):
    left_out: int = -1

    def site(self, p, site):
        return None if site == self.left_out else super().site(p, site)


class _Norm(nn.LayerNorm):
    """One that is called, whatever it computes."""


@pytest.mark.parametrize("own_norms", [False, True])
def test_every_dropout_drops(own_norms):
    model, watched = classifier(attention_probs_dropout_prob=0.3, hidden_dropout_prob=0.3).train(), Watched(3, 1)
    for module in model.modules():
        if own_norms and hasattr(module, "LayerNorm"):
            module.LayerNorm = _Norm(8)
    with torch.no_grad():
        for p in model.parameters():
            p.normal_()

    def logits(key):
        with rng.use(key):
            return model(PackedBatch.from_sequences([range(5, 17), range(3, 9)])).logits

    every = logits(watched)
    for _, site in watched.asked:
        assert not torch.allclose(logits(_AllBut(3, 1, left_out=site)), every), site
    assert torch.equal(logits(_AllBut(3, 1)), every)


@pytest.mark.parametrize(
    ("names", "shares"),
    [
        (("bert.encoder.layer.0", "bert.encoder.layer.2"), {0.2: 1, 0.1: 2 + 1, 0.4: 1}),
        (("bert.encoder", "bert.embeddings"), {0.4: 1}),
        (("bert",), {0.4: 1}),
        (("dropout",), {0.2: 3, 0.1: 6 + 1}),
        (("bert.encoder.layer.1.attention",), {0.2: 2, 0.1: 5 + 1, 0.4: 1}),
        (("bert.encoder.layer.1.attention.output",), {0.2: 3, 0.1: 5 + 1, 0.4: 1}),
        (("bert.encoder.layer.1.output",), {0.2: 3, 0.1: 5 + 1, 0.4: 1}),
    ],
    ids=["two layers", "encoder and embeddings", "all below the head", "the head's", "attention", "its end", "the end"],
)
def test_parts_in_evaluation_mode_drop_nothing(names, shares):
    """As layers are frozen: the rest is trained, and drops as it did."""
    model, key = fastbert.BertForSequenceClassification(BERT).train(), Watched(3, 1)
    for name in names:
        model.get_submodule(name).eval()
    with rng.use(key):
        model(PackedBatch.from_sequences([[2, 7, 8, 3]]))
    assert Counter(p for p, _ in key.asked if p) == shares


def test_a_mode_that_changes_before_the_backward_pass_changes_nothing():
    gradients = []
    for change in (False, True):
        torch.manual_seed(0)
        model = fastbert.BertForSequenceClassification(BERT).train()
        model.gradient_checkpointing_enable()
        model.bert.encoder.layer[1].eval()
        with rng.use(rng.DropoutKey(3, 1)):
            out = model(PackedBatch.from_sequences([[2, 7, 8, 3]]))
        if change:
            model.eval()
        out.logits.sum().backward()
        gradients.append([p.grad for p in model.parameters()])
    torch.testing.assert_close(*gradients, rtol=0, atol=0)
