"""Inputs and labels that do not fit: one sentence each, before anything is computed."""

from __future__ import annotations

import dataclasses

import hf_parity as hf
import numpy as np
import pytest
import torch
import transformers
from torch import nn

import fastbert
from fastbert import GPTForPreTraining
from fastbert.errors import InputError
from fastbert.gpt_config import GPTConfig
from fastbert.packing import PackedBatch


def _one_sentence(model, *words, **given):
    with pytest.raises(InputError) as caught:
        model(**given)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert str(word) in message, message


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("bert.embeddings", "dropout"),
        ("bert.encoder.layer.0.attention.self", "dropout"),
        ("bert.encoder.layer.0.attention.output", "dropout"),
        ("bert.encoder.layer.0.intermediate", "intermediate_act_fn"),
        ("bert.encoder.layer.0.output", "dropout"),
        ("cls.predictions.transform", "transform_act_fn"),
        ("bert.pooler", "activation"),
        ("transformer.h.0.attn", "attn_dropout"),
        ("transformer.h.0.mlp", "act"),
    ],
)
def test_a_part_that_only_transformers_has_is_not_kept_in_silence(place, name):
    if place.startswith("transformer."):
        model = GPTForPreTraining(GPTConfig(vocab_size=9, n_embd=8, n_layer=1, n_head=1, n_positions=4))
    else:
        _, model = hf.pair("BertForPreTraining")
    module = model.get_submodule(place)
    said = rf"^{type(module).__name__}\.{name} is computed by .*, got ReLU; patch a"
    with pytest.raises(InputError, match=said) as refused:
        setattr(module, name, nn.ReLU())
    assert "\n" not in str(refused.value)
    assert not hasattr(module, name)


def test_inputs_that_do_not_fit():
    _, ours = hf.pair("BertModel")
    ids, types = (hf.inputs()[x] for x in ("input_ids", "token_type_ids"))
    outside = ids.clone()
    outside[1, 2] = hf.VOCAB
    _one_sentence(ours, "input_ids", hf.VOCAB, input_ids=outside)
    outside[1, 2] = -1
    _one_sentence(ours, "input_ids", -1, input_ids=outside)
    _one_sentence(ours, "token_type_ids", 2, input_ids=ids, token_type_ids=types + 1)
    _one_sentence(ours, "position_ids", 24, input_ids=ids, position_ids=torch.full_like(ids, 24))
    long = torch.zeros(1, 25, dtype=torch.int64)
    _one_sentence(ours, "max_position_embeddings", 24, 25, input_ids=long)
    _one_sentence(ours, 24, 25, input_ids=PackedBatch.from_sequences([[1], [1] * 25]))
    _one_sentence(ours, 24, 25, input_ids=long[0], cu_seqlens=torch.tensor([0, 25]))
    _one_sentence(ours, "attention_mask", (4, 5), input_ids=ids, attention_mask=torch.ones(4, 5))
    _one_sentence(ours, "token_type_ids", (4, 5), input_ids=ids, token_type_ids=types[:, :5])
    _one_sentence(ours, "input_ids", "got both", input_ids=ids, inputs_embeds=torch.zeros(4, 11, 32))
    _one_sentence(ours, "input_ids", "inputs_embeds", "got neither")
    _one_sentence(ours, "no_such_argument", input_ids=ids, no_such_argument=1)
    _one_sentence(ours, "encoder_hidden_states", input_ids=ids, encoder_hidden_states=torch.zeros(4, 11, 32))
    _one_sentence(ours, "head_mask", input_ids=ids, head_mask=torch.ones(3, 4))
    batch = PackedBatch.from_sequences([[1, 2]])
    _one_sentence(ours, "attention", input_ids=batch, output_attentions=True)
    _one_sentence(ours, "input_ids", "float32", input_ids=ids.float())
    _one_sentence(ours, "token_type_ids", "uint8", input_ids=ids, token_type_ids=types.byte())
    _one_sentence(ours, "input_ids", "torch tensor", "list", input_ids=ids.tolist())
    _one_sentence(ours, "attention_mask", "torch tensor", "ndarray", input_ids=ids, attention_mask=ids.numpy())
    _one_sentence(ours, "token_type_ids", "torch tensor", "list", input_ids=ids, token_type_ids=types.tolist())
    _one_sentence(ours, "attention_mask", "meta device", input_ids=ids, attention_mask=ids.to("meta"))
    _one_sentence(ours, "past_key_values", input_ids=ids, past_key_values=object())
    _one_sentence(ours, "cache is not supported", input_ids=ids, cache=object())
    idle = {"head_mask": [None] * 3, "use_cache": False, "past_key_values": None, "cache": None}
    assert ours(ids, **idle).last_hidden_state.isfinite().all()


@pytest.mark.parametrize("bounds", [[0, 3], [0, 2, 4, 3], [0, 5], [1, 4]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])  # the kernels', and the reference's
def test_bounds_of_a_packed_batch_that_are_not_its_tokens(bounds, dtype):
    _, ours = hf.pair("BertModel")
    batch = dataclasses.replace(PackedBatch.from_sequences([[1, 2, 3, 4]]), cu_seqlens=torch.tensor(bounds).int())
    _one_sentence(ours.to(dtype), "cu_seqlens must ascend from 0 to the 4 tokens", bounds, input_ids=batch)


def _gpt():
    sizes = {"vocab_size": 20, "n_positions": 8, "n_embd": 16, "n_layer": 1, "n_head": 2}
    return GPTForPreTraining(GPTConfig(**sizes)).eval()


@pytest.mark.parametrize("name", ["BertForPreTraining", "BertForMaskedLM", "GPTForPreTraining"])
@pytest.mark.parametrize("last_layer", ["all", "needed"])
def test_labels_of_a_packed_batch_without_their_places(name, last_layer):
    ours = _gpt() if name == "GPTForPreTraining" else hf.pair(name)[1]
    ours.last_layer = last_layer
    one = torch.tensor([1])
    for words, labels in {
        "got no mlm_positions": {"mlm_labels": one},
        "got no mlm_labels": {"mlm_positions": one},
        "mlm_positions must be between 0 and 3 (the number of tokens is 4), got 4": {
            "mlm_labels": one,
            "mlm_positions": one + 3,
        },
    }.items():
        _one_sentence(ours, words, input_ids=PackedBatch.from_sequences([[1, 2, 3, 4]], **labels))


@pytest.mark.parametrize("num_choices", [2, 4, 0, -3])
def test_a_packed_batch_of_questions_with_fewer_choices(num_choices):
    _, ours = hf.pair("BertForMultipleChoice")
    batch = PackedBatch.from_sequences([[1, 2], [3], [4, 5]])
    _one_sentence(ours, f"num_choices = {num_choices}", "got 3 sequences", input_ids=batch, num_choices=num_choices)


@pytest.mark.parametrize("row", [[1.5], ["a"], "text", 3, None, [[1, 2]]])
def test_sequences_that_are_no_ids(row):
    with pytest.raises(InputError, match="input_ids must be sequences of ids, got"):
        PackedBatch.from_sequences([[1, 2], row])
    with pytest.raises(InputError, match="token_type_ids must be sequences of ids, got"):
        PackedBatch.from_sequences([[1]], [row])


@pytest.mark.filterwarnings("error")
def test_sequences_of_a_file_that_is_only_read_give_no_warning():
    row = np.arange(3)
    row.flags.writeable = False
    torch.set_warn_always(True)  # torch warns once a process otherwise
    try:
        batch = PackedBatch.from_sequences([row, [3, 4]], [row, [0, 0]])
    finally:
        torch.set_warn_always(False)
    assert batch.input_ids.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("name", ["BertForMaskedLM", "BertForTokenClassification", "BertForPreTraining"])
def test_labels_of_another_dtype(name):
    _, ours = hf.pair(name)
    ids = hf.inputs()["input_ids"]
    options = {"next_sentence_label": torch.zeros(len(ids)).long()} if name == "BertForPreTraining" else {}
    with pytest.raises(InputError, match="labels must be int64, got int32"):
        ours(ids, labels=torch.zeros_like(ids).int(), **options)


@pytest.mark.parametrize("name", ["BertForTokenClassification", "BertForMaskedLM"])
@pytest.mark.parametrize("beyond", [0, -1, -101])
def test_a_label_that_is_no_class(name, beyond):
    """The first number above them too; -100 is none."""
    _, ours = hf.pair(name)
    ids = hf.inputs()["input_ids"]
    classes = ours.config.num_labels if name == "BertForTokenClassification" else ours.config.vocab_size
    labels = torch.full_like(ids, -100)
    labels[0, 1], labels[0, 2] = classes - 1, beyond or classes
    words = f"labels must be between 0 and {classes - 1}, or -100 for none, got {beyond or classes}"
    with pytest.raises(InputError, match=words):
        ours(ids, labels=labels)


@hf.every_class
def test_labels_that_are_no_tensor(name):
    _, ours = hf.pair(name)
    for key, given in hf.labels(name).items():
        said = "labels" if name in ("BertForNextSentencePrediction", "BertForPreTraining") else key
        with pytest.raises(InputError, match=f"^{said} must be a torch tensor, got list$"):
            ours(**hf.arguments(name), **{**hf.labels(name), key: given.tolist()})


@hf.every_class
def test_embeddings_of_another_width(name):
    _, ours = hf.pair(name)
    shape = (2, 2, 5, 31) if name == "BertForMultipleChoice" else (2, 5, 31)
    with pytest.raises(InputError, match=r"^inputs_embeds must have a last dimension of hidden_size = 32, got "):
        ours(inputs_embeds=torch.zeros(shape))
    if name != "BertForMultipleChoice":
        with pytest.raises(InputError, match="hidden_size = 32"):
            ours(inputs_embeds=torch.zeros(5, 31), cu_seqlens=torch.tensor([0, 5]))


def test_what_would_be_left_unread_beside_packed_tokens():
    _, ours = hf.pair("BertModel")
    batch, bounds = PackedBatch.from_sequences([[1, 2], [3]]), torch.tensor([0, 2, 3])
    for name, value in (
        ("attention_mask", torch.ones(1, 3)),
        ("token_type_ids", torch.zeros(3, dtype=torch.int64)),
        ("position_ids", torch.arange(3)),
        ("inputs_embeds", torch.zeros(3, 32)),
        ("cu_seqlens", bounds),
        ("max_seqlen", 2),
    ):
        _one_sentence(ours, f"no {name}", "PackedBatch", **{"input_ids": batch, name: value})
    packed = {"input_ids": batch.input_ids, "cu_seqlens": bounds}
    _one_sentence(ours, "attention_mask", "cu_seqlens", **packed, attention_mask=torch.zeros(1, 3))
    assert ours(**packed).last_hidden_state.isfinite().all()
    _one_sentence(ours, "no max_seqlen", "cu_seqlens", input_ids=batch.input_ids[None], max_seqlen=2)


def test_a_longest_sequence_that_is_none():
    """On a GPU a kernel would leave out what is beyond it; on a CPU nothing depends on it."""
    ours, bounds = hf.pair("BertModel")[1], torch.tensor([0, 2, 3])
    packed = {"input_ids": torch.ones(3, dtype=torch.int64), "cu_seqlens": bounds}
    _one_sentence(ours, "max_seqlen must be at least the longest sequence, 2, got 1", **packed, max_seqlen=1)
    assert ours(**packed, max_seqlen=5).last_hidden_state.equal(ours(**packed).last_hidden_state)
    with pytest.raises(InputError, match="max_seqlen must be at least the longest sequence, 2, got 1"):
        ours.encoder(torch.randn(3, 32), cu_seqlens=bounds, max_seqlen=1)


@pytest.mark.parametrize("bounds", [[], [0], [0, 2], [1, 3], [0, 4], [0, 2, 1, 3]])
def test_bounds_that_are_not_those_of_the_tokens(bounds):
    _, ours = hf.pair("BertModel")
    ids, given = torch.ones(3, dtype=torch.int64), torch.tensor(bounds, dtype=torch.int32)
    _one_sentence(ours, "cu_seqlens", "the 3 tokens", bounds, input_ids=ids, cu_seqlens=given)


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("bounds", [[0], [0, 2], [1, 3], [0, 4], [0, 2, 1, 3], [0.0, 3.0], [[0, 3]], 3])
def test_bounds_of_an_encoder_that_are_not_those_of_the_tokens(bounds, backend):
    encoder = hf.pair("BertModel")[1].encoder
    with fastbert.backend(backend), pytest.raises(InputError, match="cu_seqlens must"):
        encoder(torch.randn(3, 32), cu_seqlens=torch.tensor(bounds))


def test_what_an_encoder_does_not_take():
    encoder = hf.pair("BertModel")[1].encoder
    packed, bounds = torch.randn(3, 32), torch.tensor([0, 3])
    for words, given in (
        ("no .* attention_mask with packed tokens", {"cu_seqlens": bounds, "attention_mask": torch.ones(1, 3)}),
        (r"probabilities are kept for \(B, S\) batches only", {"cu_seqlens": bounds, "output_attentions": True}),
        ("must be a tensor of int32 or int64, got list", {"cu_seqlens": [0, 3]}),
    ):
        with pytest.raises(InputError, match=words):
            encoder(packed, **given)
    for states in (packed[0], packed[None, None]):
        with pytest.raises(InputError, match=r"hidden_states must be \(B, S, H\), or \(T, H\) packed, got"):
            encoder(states)


def test_a_masked_token_is_not_looked_at():
    _, ours = hf.pair("BertModel")
    ids = hf.inputs()["input_ids"]
    mask = hf.masks()["prefix"]
    assert ours(ids.masked_fill(mask == 0, 10**6), mask).last_hidden_state.isfinite().all()


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("BertForMaskedLM", torch.full((hf.BATCH, hf.LENGTH), hf.VOCAB)),
        ("BertForMaskedLM", torch.zeros(hf.BATCH, 3, dtype=torch.int64)),
        ("BertForNextSentencePrediction", torch.tensor([0, 1, 2, 0])),
        ("BertForSequenceClassification", torch.tensor([0, 1, 3, 0])),
        ("BertForSequenceClassification", torch.tensor([0, 1, -1, 0])),
        ("BertForTokenClassification", torch.full((hf.BATCH, hf.LENGTH), 3)),
    ],
)
def test_labels_that_do_not_fit(name, labels):
    _, ours = hf.pair(name)
    _one_sentence(ours, "labels", **hf.inputs(), labels=labels)


def test_a_batch_of_nothing():
    _, ours = hf.pair("BertModel")
    out = ours(hf.inputs()["input_ids"], attention_mask=torch.zeros(hf.BATCH, hf.LENGTH))
    assert not out.last_hidden_state.any()
    assert out.pooler_output.isfinite().all()
    out = ours(torch.zeros(0, 5, dtype=torch.int64))
    assert out.last_hidden_state.shape == (0, 5, 32)
    assert out.pooler_output.shape == (0, 32)


@pytest.mark.parametrize(
    ("num_labels", "labels", "said"),
    [
        (3, torch.rand(2), r"labels must be \(2, 3\) zeros and ones .* or int64 \(B,\) .*, got \(2,\) float32"),
        (1, torch.rand(3), r"labels must be \(2, 1\) numbers for regression, got \(3,\) float32"),
    ],
)
def test_labels_that_are_no_class_ids_have_the_shape_of_the_logits(num_labels, labels, said):
    config = fastbert.BertConfig.from_name("1x64", vocab_size=8, num_labels=num_labels)
    with pytest.raises(InputError, match=said):
        fastbert.BertForSequenceClassification(config)(torch.ones(2, 3).long(), labels=labels)


def test_class_ids_are_not_what_a_multi_label_model_expects():
    options = {"vocab_size": 8, "num_labels": 3, "problem_type": "multi_label_classification"}
    model = fastbert.BertForSequenceClassification(fastbert.BertConfig.from_name("1x64", **options))
    said = r"labels must be \(2, 3\) zeros and ones for multi-label classification, got \(2,\) int64$"
    with pytest.raises(InputError, match=said):
        model(torch.ones(2, 3).long(), labels=torch.tensor([0, 1]))


@pytest.mark.parametrize(
    ("ids", "said"),
    [(None, "expected either input_ids or inputs_embeds"), ([[[1]]], "input_ids must be a torch tensor")],
)
def test_choices_that_are_no_tensor(ids, said):
    model = fastbert.BertForMultipleChoice(fastbert.BertConfig.from_name("1x64", vocab_size=8))
    with pytest.raises(InputError, match=said):
        model(ids)


def test_noise_on_the_word_vectors_by_trainer_is_refused_in_one_sentence(tmp_path):
    _, ours = hf.pair("BertForSequenceClassification")
    options = {"report_to": [], "use_cpu": True, "disable_tqdm": True, "max_steps": 1}
    arguments = transformers.TrainingArguments(str(tmp_path), neftune_noise_alpha=5, **options)
    rows = [{"input_ids": [2, 5, 3], "labels": 1}] * 4
    with pytest.raises(InputError, match=r"neftune_noise_alpha is not supported by fastbert's models: [^\n]+$"):
        transformers.Trainer(ours, arguments, train_dataset=rows).train()
