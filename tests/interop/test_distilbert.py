"""DistilBERT as a BERT, in sentence-transformers directories and conversions."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tiny_bert import VOCAB

import fastbert
from fastbert import SentenceEncoder
from fastbert.errors import CheckpointError, InputError
from fastbert.interop.convert import convert
from fastbert.models.registry import of_model

TEXTS = ["the film was great .", "", "paris", "THE Book of France", "not good , " * 30]


def save(directory: Path, name: str = "DistilBertModel", **changes) -> Path:
    torch.manual_seed(1)
    sizes = {"vocab_size": len(VOCAB), "dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 64}
    rest = {"max_position_embeddings": 20, "initializer_range": 0.2}
    model = getattr(transformers, name)(transformers.DistilBertConfig(**{**sizes, **rest, **changes}))
    model.save_pretrained(directory)
    (directory / "vocab.txt").write_text("\n".join(VOCAB) + "\n")
    (directory / "tokenizer_config.json").write_text(
        '{"do_lower_case": true, "tokenizer_class": "DistilBertTokenizer"}'
    )
    return directory


@pytest.mark.parametrize("name", ["DistilBertModel", "DistilBertForMaskedLM", "DistilBertForSequenceClassification"])
@pytest.mark.parametrize("sinusoidal", [False, True])
def test_distiluse_agrees_with_sentence_transformers(name, sinusoidal, tmp_path):
    from sentence_library import library, modules

    transformer = modules.Transformer(str(save(tmp_path / "bert", name, sinusoidal_pos_embds=sinusoidal)))
    torch.manual_seed(2)
    parts = [transformer, modules.Pooling(32, pooling_mode="mean"), modules.Dense(32, 12)]
    model = library.SentenceTransformer(modules=parts, device="cpu").eval()
    model.save(str(tmp_path / "st"))
    wanted = model.encode(TEXTS)
    ours = SentenceEncoder.from_pretrained(tmp_path / "st")
    np.testing.assert_allclose(ours.encode(TEXTS), wanted, rtol=0, atol=1e-5)
    assert ours.max_seqlen == 20
    # Out: as a BERT, for sentence-transformers and for us; by either way.
    convert(tmp_path / "st", tmp_path / "converted", to="sentence-transformers")
    ours.save_pretrained(tmp_path / "saved")
    for directory in (tmp_path / "converted", tmp_path / "saved"):
        assert json.loads((directory / "config.json").read_text())["model_type"] == "bert"
        again = SentenceEncoder.from_pretrained(directory)
        np.testing.assert_array_equal(again.encode(TEXTS), ours.encode(TEXTS))
        theirs = library.SentenceTransformer(str(directory), device="cpu")
        np.testing.assert_allclose(theirs.encode(TEXTS), wanted, rtol=0, atol=1e-5)
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("st", "saved"))
    assert torch.equal(
        before["transformer.layer.1.ffn.lin1.weight"], after["encoder.layer.1.intermediate.dense.weight"]
    )
    assert not after["embeddings.token_type_embeddings.weight"].any()
    assert ours.model.num_parameters() == sum(x.numel() for x in after.values())


def test_a_plain_directory_and_what_is_not_used(tmp_path):
    source = save(tmp_path / "bert", "DistilBertForSequenceClassification", dropout=0.2, attention_dropout=0.3)
    theirs = transformers.DistilBertModel.from_pretrained(source).eval()
    found = convert(source, tmp_path / "out")
    assert type(found.model).__name__ == "BertModel"
    assert not found.model.training
    # Read as BERT's head for tags, which has the name of its second layer, it would answer without the first.
    assert {name.split(".")[0] for name in found.unused} == {"classifier", "pre_classifier"}
    model = fastbert.BertModel.from_pretrained(tmp_path / "out")
    config = model.config
    assert (config.hidden_dropout_prob, config.attention_probs_dropout_prob, config.layer_norm_eps) == (0.2, 0.3, 1e-12)
    ids = torch.randint(5, len(VOCAB), (3, 9))
    mask = torch.tensor([9, 4, 1])[:, None] > torch.arange(9)
    with torch.no_grad():
        wanted = theirs(ids, attention_mask=mask.long()).last_hidden_state[mask]
        got = model(ids, attention_mask=mask.long()).last_hidden_state[mask]
        types = model(ids, attention_mask=mask.long(), token_type_ids=torch.ones_like(ids)).last_hidden_state[mask]
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-5)
    torch.testing.assert_close(types, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("head", ["ForMaskedLM", "ForTokenClassification", "ForQuestionAnswering"])
def test_heads_that_are_berts(head, tmp_path):
    source = save(tmp_path / "distil", f"DistilBert{head}")
    theirs = getattr(transformers, f"DistilBert{head}").from_pretrained(source).eval()
    found = convert(source, tmp_path / "bert")
    assert (type(found.model).__name__, found.unused) == (f"Bert{head}", ())
    ids = torch.randint(5, len(VOCAB), (3, 9))
    others = getattr(transformers, f"Bert{head}").from_pretrained(tmp_path / "bert").eval()
    with torch.no_grad():
        wanted = theirs(ids)[0]
        for model in (found.model, others):
            torch.testing.assert_close(model(ids)[0], wanted, rtol=0, atol=1e-5)


def test_of_several_heads_the_one_that_the_configuration_names_goes_out(tmp_path):
    source = save(tmp_path / "distil", "DistilBertForQuestionAnswering")
    both = load_file(save(tmp_path / "words", "DistilBertForMaskedLM") / "model.safetensors")
    both |= load_file(source / "model.safetensors")
    save_file(both, source / "model.safetensors", {"format": "pt"})
    assert type(convert(source, tmp_path / "bert").model).__name__ == "BertForQuestionAnswering"


def test_choices_have_another_head(tmp_path):
    found = convert(save(tmp_path / "distil", "DistilBertForMultipleChoice"), tmp_path / "bert")
    assert type(found.model).__name__ == "BertModel"


def test_what_is_no_bert_is_refused(tmp_path):
    with pytest.raises(
        InputError, match=r"config\.json: activation \(BERT's hidden_act\) must be one of .*, got 'relu'"
    ):
        SentenceEncoder.from_pretrained(save(tmp_path / "relu", activation="relu"))
    directory = save(tmp_path / "cut")
    state = load_file(directory / "model.safetensors")
    del state["embeddings.word_embeddings.weight"]
    torch.save(state, directory / "pytorch_model.bin")
    (directory / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="expected a table of word embeddings"):
        SentenceEncoder.from_pretrained(directory)
    # A model with a head is not read as BERT's in silence.
    with pytest.raises(InputError, match=r"'bert', got 'distilbert'; `fastbert convert` makes a BERT of it$"):
        fastbert.BertForSequenceClassification.from_pretrained(save(tmp_path / "head"))


def test_fine_tuning_takes_what_convert_made_of_it_and_says_so(tmp_path):
    source = save(tmp_path / "distil")
    with pytest.raises(InputError, match=r"got 'distilbert'; `fastbert convert` makes a BERT of it$"):
        of_model(source)
    convert(source, tmp_path / "bert", to="safetensors")
    assert of_model(tmp_path / "bert").model_type == "bert"
