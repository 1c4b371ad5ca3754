"""`fastbert.patch` under sentence-transformers: encoders of several vectors, and losses that encode features twice."""

from __future__ import annotations

import copy

import hf_parity as hf
import numpy as np
import pytest
import torch
from sentence_library import library as st
from sentence_library import losses, modules
from tiny_bert import save as save_tiny

import fastbert
from fastbert import _native
from fastbert.errors import CheckpointError

TEXTS = ["the film was great .", "paris", "a bad , dull and poor book of france is not good ."]


@pytest.mark.skipif(not hasattr(st, "MultiVectorEncoder"), reason="this sentence-transformers has no ColBERT")
@pytest.mark.parametrize("attend", [True, False])
def test_queries_that_are_filled_up(attend, tmp_path, only_ours):
    """With words that others may not attend to: they are masked, and their vectors are read nevertheless."""
    theirs = st.MultiVectorEncoder(str(save_tiny(tmp_path, "BertModel")), device="cpu").eval()
    theirs[0].query_expansion = {"strategy": "fixed", "attend": attend, "length": 24}
    ours = fastbert.patch(copy.deepcopy(theirs))
    wanted, documents = theirs.encode_query(TEXTS), theirs.encode_document(TEXTS)
    only_ours()
    for got, expected in zip(
        [*ours.encode_query(TEXTS), *ours.encode_document(TEXTS)], [*wanted, *documents], strict=True
    ):
        hf.assert_near(torch.as_tensor(got), torch.as_tensor(expected), torch.float32, "vectors")


def test_features_that_a_loss_encodes_twice(tmp_path, only_ours):
    model = st.SentenceTransformer(str(save_tiny(tmp_path, "BertModel")), device="cpu").eval()
    values = []
    for make in (lambda: model, lambda: fastbert.patch(model)):
        loss = losses.CachedGISTEmbedLoss(make(), copy.deepcopy(model), mini_batch_size=2)
        # Features hold the vectors of the first encoder when the guide is given them.
        features = [getattr(model, "preprocess", model.tokenize)(texts) for texts in (TEXTS, TEXTS[::-1])]
        values.append(loss(features, None))
        only_ours()
    hf.assert_near(values[1], values[0], torch.float32, "loss")


@pytest.mark.skipif(not hasattr(st.CrossEncoder, "preprocess"), reason="this CrossEncoder takes no features")
def test_pairs_that_were_scored_before(tmp_path, only_ours):
    directory = save_tiny(tmp_path, "BertForSequenceClassification", num_labels=1)
    model = st.CrossEncoder(str(directory), device="cpu").eval()
    features = model.preprocess(list(zip(TEXTS, TEXTS[::-1], strict=True)))
    wanted = model(features)["scores"]
    fastbert.patch(model)
    only_ours()
    # They hold the scores of the teacher when the student is given them.
    hf.assert_near(model(features)["scores"], wanted, torch.float32, "scores")


@pytest.mark.parametrize("mode", ["mean", "mean_sqrt_len_tokens", "weightedmean", "max", "cls"])
def test_poolings_know_no_neighbours(mode, tmp_path):
    """`batch_invariant` holds for what a pooling sums over padded tokens, too."""
    torch.manual_seed(0)
    encoder = modules.Transformer(str(save_tiny(tmp_path, "BertModel", hidden_size=48)))
    model = st.SentenceTransformer(modules=[encoder, modules.Pooling(48, mode)], device="cpu")
    fastbert.patch(model)
    words = " ".join(TEXTS).split()
    texts = [" ".join(words[i % 5 : i % 5 + n]) for i, n in enumerate((1, 3, 5, 8, 9, 13, 17, 21))]
    usual = model.encode(texts)
    with fastbert.batch_invariant():
        alone = np.concatenate([model.encode([text]) for text in texts])
        together = model.encode(texts, batch_size=8)
    np.testing.assert_array_equal(together, alone)
    np.testing.assert_allclose(together, usual, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(_native.why_missing() is not None, reason=str(_native.why_missing()))
def test_int8_sentence_vectors(tmp_path):
    model = st.SentenceTransformer(str(save_tiny(tmp_path, "BertModel", hidden_size=48)), device="cpu")
    exact = model.encode(TEXTS)
    fastbert.quantize(fastbert.patch(model))
    difference = np.abs(model.encode(TEXTS) - exact).max()
    assert 0 < difference < 0.1 * np.abs(exact).max()
    with pytest.raises(CheckpointError, match="save the model before quantize"):
        model.save(str(tmp_path / "int8"))
