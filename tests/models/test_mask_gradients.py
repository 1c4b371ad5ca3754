"""A 4-D mask that is learned has the gradient that it has in transformers and torch, also where it begins at zero."""

from __future__ import annotations

import copy

import pytest
import torch
import transformers
from torch import nn
from transformers.models.bert.modeling_bert import BertEncoder

import fastbert

SIZES = {
    **{"vocab_size": 60, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48},
    **{"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
}
MASKS = {
    "of queries": torch.linspace(-1, 1, 98).view(2, 1, 7, 7),
    "of keys": torch.linspace(-1, 1, 14).view(2, 1, 1, 7),
    "zero": torch.zeros(2, 1, 1, 7),
    "dropping keys": torch.tensor([[0.0] * 7, [0.0] * 4 + [-1e4] * 3])[:, None, None],
}
IDS = torch.randint(5, 60, (2, 7), generator=torch.Generator().manual_seed(0))
X = torch.randn(2, 7, 24, generator=torch.Generator().manual_seed(1))


def gradient(call, mask: torch.Tensor) -> torch.Tensor:
    mask = mask.clone().requires_grad_()
    ((call(mask) * torch.linspace(-1, 1, 24)).sin()[:, :4]).sum().backward()
    return mask.grad


def check(theirs, ours, mask) -> None:
    wanted = gradient(theirs, mask)
    assert wanted.abs().max() > 1e-4
    torch.testing.assert_close(gradient(ours, mask), wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", MASKS)
def test_an_encoder(name):
    theirs = BertEncoder(transformers.BertConfig(**SIZES, attn_implementation="sdpa")).eval()
    ours = fastbert.BertEncoder(fastbert.BertConfig(**SIZES)).eval()
    ours.load_state_dict(theirs.state_dict())
    check(lambda mask: theirs(X, mask)[0], lambda mask: ours(X, mask)[0], MASKS[name])


@pytest.mark.skipif(int(transformers.__version__.partition(".")[0]) < 5, reason="version 4 converts ready 4-D masks")
@pytest.mark.parametrize("name", MASKS)
def test_a_patched_model(name):
    theirs = transformers.BertModel(transformers.BertConfig(**SIZES, attn_implementation="sdpa")).eval()
    ours = fastbert.patch(copy.deepcopy(theirs))
    check(lambda mask: theirs(IDS, mask)[0], lambda mask: ours(IDS, mask)[0], MASKS[name])


@pytest.mark.parametrize("name", ["zero", "of keys"])
def test_an_encoder_of_torch(name):
    layer = nn.TransformerEncoderLayer(24, 2, 48, dropout=0.0, activation="gelu", batch_first=True)
    theirs = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    ours = fastbert.patch(copy.deepcopy(theirs))
    calls = (lambda mask, m=m: m(X, src_key_padding_mask=mask[:, 0, 0]) for m in (theirs, ours))
    check(*calls, MASKS[name])
