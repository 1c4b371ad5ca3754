"""In evaluation on a CPU the last layer computes only the tokens that are read, to the same bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

import fastbert
from fastbert import (
    BertConfig,
    BertForMultipleChoice,
    BertForNextSentencePrediction,
    BertForSequenceClassification,
    BertModel,
    PackedBatch,
    SentenceEncoder,
    _native,
)
from fastbert.ops import _cpu_encoder

HEADS = (BertForSequenceClassification, BertForNextSentencePrediction, BertForMultipleChoice)
needs_kernels = pytest.mark.skipif(_native.why_missing() is not None, reason=str(_native.why_missing()))


def make(cls: type, precision: str = "fp32", **changes):
    torch.manual_seed(2)
    sizes = {"hidden_size": 48, "num_attention_heads": 2, "intermediate_size": 96, "num_hidden_layers": 2}
    model = cls(BertConfig(vocab_size=50, **sizes, **changes)).eval()
    return fastbert.quantize(model) if precision == "int8" else model.bfloat16() if precision == "bf16" else model


@pytest.fixture
def chosen(monkeypatch) -> list:
    """Of each pass by the native encoder, the tokens whose last state it computes; None for all."""
    rows, run = [], _cpu_encoder._run

    def spy(*arguments):
        rows.append(arguments[-1].tolist() if arguments[-1] is not None else None)
        return run(*arguments)

    monkeypatch.setattr(_cpu_encoder, "_run", spy)
    return rows


def whole(monkeypatch, call):
    """What a call gives where all of the last layer is computed."""
    with monkeypatch.context() as patch:
        patch.setattr(BertModel, "last_layer_is_unseen", lambda self: False)
        return call()


@needs_kernels
@pytest.mark.parametrize("cls", HEADS)
@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
@torch.no_grad()
def test_logits_have_the_bits_of_whole_layers(monkeypatch, chosen, cls, precision):
    model, lengths = make(cls, precision), (9, 1, 17, 6)
    generator = torch.Generator().manual_seed(3)
    sequences = [torch.randint(5, 50, (n,), generator=generator) for n in lengths]
    ids, keep = torch.zeros(4, 17, dtype=torch.int64), torch.zeros(4, 17, dtype=torch.int64)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)], keep[row, : len(sequence)] = sequence, 1
    if cls is BertForMultipleChoice:
        ids, keep = ids.view(2, 2, 17), keep.view(2, 2, 17)
    options = {"num_choices": 2} if cls is BertForMultipleChoice else {}
    for call in (
        lambda: model(PackedBatch.from_sequences(sequences), **options).logits,
        lambda: model(ids, attention_mask=keep).logits,
    ):
        chosen.clear()
        expected = whole(monkeypatch, call)
        assert torch.equal(call(), expected)
        assert chosen == [None, [0, 9, 10, 27]]


@torch.no_grad()
def test_sequences_and_batches_without_tokens(monkeypatch):
    model = make(BertForSequenceClassification)
    for bounds in ([0, 0, 3, 3], [0, 0]):
        ids, bounds = torch.arange(5, 5 + bounds[-1]), torch.tensor(bounds, dtype=torch.int32)

        def call(ids=ids, bounds=bounds):
            return model(ids, cu_seqlens=bounds, max_seqlen=int(bounds[-1])).logits

        assert torch.equal(call(), whole(monkeypatch, call))


@needs_kernels
@pytest.mark.parametrize("why", ["states", "a hook"])
@torch.no_grad()
def test_whole_layers_are_computed_where_they_are_seen(chosen, why):
    model, seen = make(BertForSequenceClassification), []
    if why == "a hook":
        model.bert.encoder.register_forward_hook(lambda module, inputs, output: seen.append(output[0]))
    batch = PackedBatch.from_sequences([torch.arange(5, 14), torch.arange(7, 10)])
    out = model(batch, output_hidden_states=why == "states")
    if why == "states":
        seen = out.hidden_states[1:]
    assert [len(state) for state in seen] == [12] * (2 if why == "states" else 1)
    assert set(chosen) <= {None}


@needs_kernels
def test_recorded_passes_have_the_gradients_of_whole_layers(monkeypatch):
    model = make(BertForSequenceClassification)
    batch = PackedBatch.from_sequences([torch.arange(5, 14), torch.arange(7, 10)])
    parameters = [p for name, p in model.named_parameters() if "position" not in name]

    def gradients() -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(model(batch).logits[:, 0].sum(), parameters)

    for found, expected in zip(gradients(), whole(monkeypatch, gradients), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


class Bare(BertModel):
    """As sentence encoders are: without a pooler."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config, add_pooling_layer=False)


def words() -> Tokenizer:
    table = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, **{f"w{i}": i for i in range(4, 50)}}
    tokenizer = Tokenizer(models.WordLevel(table, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


@needs_kernels
@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("prompt", ["", "w9 w8 "])
def test_vectors_of_first_tokens_have_the_bits_of_whole_layers(monkeypatch, chosen, precision, prompt):
    model = make(Bare, precision)
    encoder = SentenceEncoder(model, words(), pooling="cls", include_prompt=False)
    sentences = ["w5 w6 w7", "w9", "w11 w12 w13 w14 w15 w16"]
    expected = whole(monkeypatch, lambda: encoder.encode(sentences, prompt=prompt))
    assert np.array_equal(encoder.encode(sentences, prompt=prompt), expected)
    assert chosen[0] is None
    assert len(chosen[1]) == 3
    both = SentenceEncoder(model, words(), pooling=("cls", "mean"), include_prompt=False)
    assert np.array_equal(both.encode(sentences, prompt=prompt)[:, :48], expected)
    assert chosen[2] is None
