"""Features of layers against transformers' hidden states, one text at a time and unpadded."""

import numpy as np
import pytest
import tiny_bert
import torch
import transformers

import fastbert
from fastbert.errors import DataError, InputError
from fastbert.tasks import features
from fastbert.tasks.features import LAYERS, select_layers, token_features

TEXTS = ["the film is good .", "", "a great book !", "not bad , and very fine", "it", ("the film is good", "not bad")]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tiny_bert.save(tmp_path_factory.mktemp("features"), "BertModel", num_hidden_layers=5)


@pytest.fixture(scope="module")
def hidden(directory):
    """transformers' hidden states of every text: tuples of (n, H), embeddings first."""
    model = transformers.BertModel.from_pretrained(directory).eval()
    tokenizer = transformers.BertTokenizer(str(directory / "vocab.txt"))
    with torch.inference_mode():
        return [
            [h[0] for h in model(**tokenizer(*texts, return_tensors="pt"), output_hidden_states=True).hidden_states]
            for texts in ([text] if isinstance(text, str) else text for text in TEXTS)
        ]


# The paper's Table 7, written out on a list of the embeddings and five layers.
BY_HAND = {
    "embeddings": lambda h: h[0],
    "second-to-last": lambda h: h[4],
    "last": lambda h: h[5],
    "last4-sum": lambda h: h[2] + h[3] + h[4] + h[5],
    "last4-concat": lambda h: torch.cat([h[2], h[3], h[4], h[5]], 1),
    "all12-sum": lambda h: h[1] + h[2] + h[3] + h[4] + h[5],
}


@pytest.mark.parametrize("layers", LAYERS)
def test_features_are_transformers(directory, hidden, layers):
    model = fastbert.BertModel.from_pretrained(directory, add_pooling_layer=False)
    found = list(token_features(model, fastbert.load_tokenizer(directory), TEXTS, layers, token_budget=16))
    assert found[0].tokens == ["[CLS]", "the", "film", "is", "good", ".", "[SEP]"]
    for one, states in zip(found, hidden, strict=True):
        np.testing.assert_allclose(one.values, BY_HAND[layers](states).numpy(), atol=1e-5)


def test_long_texts_are_named_or_cut(directory, monkeypatch):
    monkeypatch.setattr(features, "WINDOW", 2)
    model = fastbert.BertModel.from_pretrained(directory, add_pooling_layer=False)
    tokenizer = fastbert.load_tokenizer(directory)
    texts = ["it", "the film", "it is", "the " * 40]
    with pytest.raises(DataError, match=r"the texts, line 4: expected at most the model's 32 tokens .*, got 42"):
        list(token_features(model, tokenizer, texts, "last"))
    assert [len(f.ids) for f in token_features(model, tokenizer, texts, "last", truncate=True)] == [3, 4, 4, 32]


def test_features_of_long_texts_are_not_all_in_memory(directory, monkeypatch):
    model, tokenizer = fastbert.BertModel.from_pretrained(directory), fastbert.load_tokenizer(directory)
    texts = ["the film is good", "dull", "a book . " * 5, "the film", "is good is good"]
    whole = list(token_features(model, tokenizer, texts, "last"))
    sizes, compute = [], features._window_features
    monkeypatch.setattr(features, "_TOKENS", 20)

    def noted(model, rows, *more):
        sizes.append(len(rows))
        return compute(model, rows, *more)

    monkeypatch.setattr(features, "_window_features", noted)
    for got, wanted in zip(token_features(model, tokenizer, texts, "last"), whole, strict=True):
        assert got.ids == wanted.ids
        np.testing.assert_allclose(got.values, wanted.values, rtol=1e-5, atol=1e-5)
    assert sizes == [2, 1, 2]


def test_choices_that_do_not_fit():
    states = [torch.zeros(2, 4)] * 3
    with pytest.raises(InputError, match="at least 4 layers, got 2"):
        select_layers(states, "last4-sum")
    with pytest.raises(InputError, match="layers must be one of"):
        select_layers(states, "first")
    for numbers, got in (((0, 2), 2), ((-3,), -3), ((), "none")):
        with pytest.raises(InputError, match=f"layers must be numbers from -2 to 1 for a model's 2, got {got}"):
            select_layers(states, numbers)
