"""No two dropouts of a forward pass draw the same numbers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest
import torch

import fastbert
from fastbert import BertConfig, PackedBatch, rng
from fastbert.gpt_config import GPT2Config, GPTConfig
from fastbert.models.gpt import GPTForPreTraining


@dataclass(frozen=True)
class Watched(rng.DropoutKey):
    """A key that counts the places that ask it for their numbers."""

    asked: Counter = None

    def site(self, p, site):
        self.asked[site] += 1
        return super().site(p, site)


SIZES = {"vocab_size": 20, "n_embd": 8, "n_layer": 3, "n_head": 2}
# Of the embeddings; of probabilities and both branches in each of three layers; and of a head.
MODELS = {
    "bert": (10, lambda: fastbert.BertForSequenceClassification(
        BertConfig(vocab_size=20, hidden_size=8, num_hidden_layers=3, num_attention_heads=2, intermediate_size=16)
    )),
    "gpt": (10, lambda: GPTForPreTraining(GPTConfig(**SIZES))),
    "gpt2": (10, lambda: GPTForPreTraining(GPT2Config(**SIZES))),
}  # fmt: skip


@pytest.mark.parametrize("kind", MODELS)
def test_every_dropout_has_a_place_of_its_own(kind):
    count, make = MODELS[kind]
    torch.manual_seed(0)
    model, key = make().train(), Watched(3, 1, asked=Counter())
    with rng.use(key):
        model(PackedBatch.from_sequences([[2, 7, 8, 3]]))
    assert rng.current() != key
    assert set(key.asked.values()) == {1}
    assert len(key.asked) == count + (kind == "bert")
