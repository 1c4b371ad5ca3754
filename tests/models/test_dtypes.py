"""Hidden states of another dtype than the weights: taken and refused as by torch, with gradients or without; and the
dtypes of what comes back under autocast."""

from __future__ import annotations

import itertools

import pytest
import torch
import transformers
from patched import V5
from torch import nn
from transformers.models.bert.modeling_bert import BertEncoder

import fastbert
from fastbert.errors import InputError

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
SIZES = {
    **{"vocab_size": 61, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48},
    **{"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
}


def _encoder(attention="sdpa"):
    config = transformers.BertConfig(**SIZES, attn_implementation=attention)
    theirs, ours = BertEncoder(config), fastbert.BertEncoder(config)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def _patched():
    theirs, ours = (transformers.BertModel(transformers.BertConfig(**SIZES)) for _ in range(2))
    return theirs, fastbert.patch(ours)


def _of_torch():
    size = SIZES["hidden_size"]
    theirs, ours = (
        nn.TransformerEncoder(
            nn.TransformerEncoderLayer(size, 2, 2 * size, dropout=0.0, activation="gelu", batch_first=True),
            2,
            enable_nested_tensor=False,
        )
        for _ in range(2)
    )
    return theirs, fastbert.patch(ours)


def _pass(model, x):
    given = {"inputs_embeds": x} if isinstance(model, transformers.BertModel) else {"src": x}
    out = model(x) if isinstance(model, (BertEncoder, fastbert.BertEncoder)) else model(**given)
    return out if isinstance(out, torch.Tensor) else out[0]


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("make", [_encoder, _patched, _of_torch])
def test_two_dtypes_are_taken_and_refused_as_by_torch(make, gradients):
    for weights, states in itertools.product(DTYPES, DTYPES):
        theirs, ours = (model.to(weights).eval() for model in make())
        x = torch.randn(2, 5, SIZES["hidden_size"]).to(states)
        with torch.set_grad_enabled(gradients):
            try:
                expected = _pass(theirs, x).dtype
            except RuntimeError:
                with pytest.raises(InputError, match="hidden states must have the dtype of the weights"):
                    _pass(ours, x)
            else:
                assert _pass(ours, x).dtype == expected


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("make", [_encoder, _patched, _of_torch])
def test_autocast_takes_two_dtypes(make, gradients):
    _, ours = make()
    x = torch.randn(2, 5, SIZES["hidden_size"])
    with torch.set_grad_enabled(gradients):
        exact = _pass(ours.eval(), x)
        with torch.autocast("cpu", torch.bfloat16):
            for given in (x, x.bfloat16()):
                assert (_pass(ours, given).float() - exact).abs().max() < 0.1


def _in_layers(encoder, x, mask) -> tuple[list[torch.dtype], list[torch.dtype]]:
    """The dtypes of the states of transformers' encoder, the input first, and of its attentions: version 5's alone
    gives neither."""
    states, attentions = [x.dtype], []
    for layer in encoder.layer:
        layer.register_forward_hook(lambda _, __, out: states.append((out if torch.is_tensor(out) else out[0]).dtype))
        layer.attention.self.register_forward_hook(lambda _, __, out: attentions.append(out[1].dtype))
    asked = {} if V5 else {"output_attentions": True}
    states.append(encoder(x, mask, **asked)[0].dtype)
    return states, attentions


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("masked", [None, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16, torch.float64])
def test_the_encoder_has_transformers_dtypes_under_autocast(weights, masked, gradients):
    taken = 0
    for states in DTYPES:
        theirs, ours = (model.to(weights).eval() for model in _encoder("eager"))
        x = torch.randn(2, 5, SIZES["hidden_size"]).to(states)
        mask = None if masked is None else torch.zeros(2, 1, 1, 5, dtype=masked)
        with torch.set_grad_enabled(gradients), torch.autocast("cpu", torch.bfloat16):
            try:
                (*wanted, last), attentions = _in_layers(theirs, x, mask)
            except RuntimeError:
                continue  # a LayerNorm of torch's takes not every pair
            out = ours(x, mask, output_hidden_states=True, output_attentions=True)
            packed = ours(x.flatten(0, 1), cu_seqlens=torch.tensor([0, 5, 10]), output_hidden_states=True)
            assert ours(x, mask)[0].dtype == last
        for got in (out, packed):
            assert [state.dtype for state in got.hidden_states] == wanted
            assert got[0].dtype == last
        assert [probs.dtype for probs in out.attentions] == attentions
        taken += 1
    assert taken
