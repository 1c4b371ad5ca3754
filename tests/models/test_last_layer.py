"""The last layer computed only where a loss reads it: the same losses and gradients as computing all of it, dropout
included."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from fastbert import (
    BertConfig,
    BertForMaskedLM,
    BertForMultipleChoice,
    BertForNextSentencePrediction,
    BertForPreTraining,
    BertForSequenceClassification,
    BertModel,
    PackedBatch,
    rng,
)
from fastbert.modules.layer import BertIntermediate


def make(cls=BertForPreTraining, **changes):
    torch.manual_seed(2)
    sizes = {"hidden_size": 24, "num_attention_heads": 2, "intermediate_size": 40, "num_hidden_layers": 2}
    model = cls(BertConfig(vocab_size=50, **sizes, **changes)).double()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.1)
    return model.train()


def batch() -> PackedBatch:
    torch.manual_seed(3)
    packed = PackedBatch.from_sequences([torch.randint(5, 50, (n,)) for n in (9, 1, 17)])
    return dataclasses.replace(
        packed,
        # The first token of the second sequence is both labelled and the pooler's.
        mlm_positions=torch.tensor([2, 3, 9, 20]),
        mlm_labels=torch.tensor([7, 8, -100, 9]),
        nsp_labels=torch.tensor([0, 1, 1]),
    )


NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
DROPOUT = {"hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0.2}


class _Norm(torch.nn.LayerNorm):
    """One that is called, whatever it computes."""


@pytest.mark.parametrize("cls", [BertForPreTraining, BertForMaskedLM])
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize(
    ("dropout", "own_norm"),
    [(NO_DROPOUT, False), (DROPOUT, False), (DROPOUT, True)],
    ids=["none", "dropout", "own norm"],
)
def test_losses_and_gradients_are_the_same(cls, recompute, dropout, own_norm):
    results = {}
    for which in ("all", "needed"):
        model = make(cls, **dropout)
        if own_norm:
            model.bert.encoder.layer[-1].output.LayerNorm = _Norm(24, dtype=torch.float64)
        model.last_layer = which
        if recompute:
            model.gradient_checkpointing_enable()
        rows = []
        model.bert.encoder.layer[-1].output.register_forward_hook(lambda m, i, out, rows=rows: rows.append(len(out)))
        with rng.use(rng.DropoutKey(5, 1)):
            out = model(batch())
        out.loss.backward()
        results[which] = out.loss, out.mlm_logits, *(p.grad for p in model.parameters())
        # 27 tokens; else the four labelled ones, and three first ones where there is a pooler.
        needed = 7 if cls is BertForPreTraining else 4
        assert rows[0] == (27 if which == "all" else needed)
    for whole, part in zip(results["all"], results["needed"], strict=True):
        torch.testing.assert_close(part, whole, rtol=1e-12, atol=1e-14)


def test_next_sentence_logits_too():
    model = make(**NO_DROPOUT).eval()
    expected = model(batch()).nsp_logits
    model.last_layer = "needed"
    torch.testing.assert_close(model(batch()).nsp_logits, expected, rtol=1e-12, atol=1e-14)


def test_inference_in_one_call_too():
    model = make(**NO_DROPOUT).float().eval()
    with torch.no_grad():
        expected = model(batch())
        model.last_layer = "needed"
        out = model(batch())
    torch.testing.assert_close(out.loss, expected.loss)
    torch.testing.assert_close(out.nsp_logits, expected.nsp_logits)


@pytest.mark.parametrize(
    "asked", [{"output_logits": True}, {"output_hidden_states": True}, {"labels": torch.full((27,), 4)}]
)
def test_who_asks_for_all_tokens_gets_them(asked):
    model = make(**NO_DROPOUT).eval()
    expected = model(batch(), **asked)
    model.last_layer = "needed"
    out = model(batch(), **asked)
    assert torch.equal(out.loss, expected.loss)
    if "output_hidden_states" in asked:
        assert [len(state) for state in out.hidden_states] == [27] * 3
    if "output_logits" in asked:
        assert torch.equal(out.prediction_logits, expected.prediction_logits)


def test_a_batch_without_labels_is_computed_whole():
    model = make(**NO_DROPOUT).eval()
    model.last_layer = "needed"
    assert model(dataclasses.replace(batch(), mlm_positions=None, mlm_labels=None)).prediction_logits.shape == (27, 50)


def test_dropout_is_repeatable():
    model = make()
    model.last_layer = "needed"
    with rng.use(rng.DropoutKey(5, 1)):
        first = model(batch()).loss
    with rng.use(rng.DropoutKey(5, 1)):
        assert torch.equal(model(batch()).loss, first)
    with rng.use(rng.DropoutKey(5, 2)):
        assert not torch.equal(model(batch()).loss, first)


HEADS = {
    BertForSequenceClassification: {"num_labels": 3},
    BertForMultipleChoice: {},
    BertForNextSentencePrediction: {},
}


def pooled_only(cls, **changes) -> tuple:
    """A model that reads nothing but the pooled token, what it is called with, and in its padded form."""
    sequences = [torch.randint(5, 50, (n,), generator=torch.Generator().manual_seed(n)) for n in (9, 1, 17, 6)]
    packed = PackedBatch.from_sequences(sequences)
    ids, keep = torch.zeros(4, 17, dtype=torch.long), torch.zeros(4, 17, dtype=torch.long)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)], keep[row, : len(sequence)] = sequence, 1
    labels = torch.tensor([0, 1, 1, 0])
    given = {"labels": labels[:2] if cls is BertForMultipleChoice else labels}
    if cls is BertForMultipleChoice:
        ids, keep = ids.view(2, 2, 17), keep.view(2, 2, 17)
    padded = {"input_ids": ids, "attention_mask": keep, **given}
    model = make(cls, **HEADS[cls], **changes)
    return model, ({"num_choices": 2} if cls is BertForMultipleChoice else {}) | given, packed, padded


def rows_of_the_last_layer(monkeypatch) -> list[int]:
    """Of each pass, how many rows its feed-forward block has."""
    rows, forward = [], BertIntermediate.forward

    def counted(self, x):
        rows.append(len(x))
        return forward(self, x)

    monkeypatch.setattr(BertIntermediate, "forward", counted)
    return rows


@pytest.mark.parametrize("cls", HEADS)
@pytest.mark.parametrize("form", ["packed", "padded", "packed, recomputed", "padded, left"])
@pytest.mark.parametrize("dropout", [NO_DROPOUT, DROPOUT])
def test_what_only_the_pooler_reads_has_the_same_losses_and_gradients(monkeypatch, cls, form, dropout):
    model, given, packed, padded = pooled_only(cls, **dropout)
    if form == "padded, left":  # the rectangle, of which pads are computed too
        padded = {name: x if name == "labels" else x.flip(-1) for name, x in padded.items()}
    if "recomputed" in form:
        model.gradient_checkpointing_enable()
    inputs, options = ((packed,), given) if "packed" in form else ((), padded)
    every, results = 4 * 17 if form == "padded, left" else 33, []
    rows = rows_of_the_last_layer(monkeypatch)
    for whole in (True, False):
        model.zero_grad()
        rows.clear()
        with monkeypatch.context() as patch, rng.use(rng.DropoutKey(5, 1)):
            if whole:
                patch.setattr(BertModel, "last_layer_is_unseen", lambda self: False)
            out = model(*inputs, **options)
        assert rows == [every, every if whole else 4]
        out.loss.backward()
        results.append([out.loss, out.logits, *(p.grad for p in model.parameters())])
    for whole, part in zip(*results, strict=True):
        torch.testing.assert_close(part, whole, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("which", ["all", "needed"])
def test_on_a_gpu_training_computes_all_of_it_unless_told_otherwise(monkeypatch, which):
    model, given, packed, _ = pooled_only(BertForSequenceClassification)
    rows = rows_of_the_last_layer(monkeypatch)
    monkeypatch.setattr(BertForSequenceClassification, "device", torch.device("cuda"))
    model.last_layer = which
    model(packed, **given)
    assert rows == [33, 33 if which == "all" else 4]
    rows.clear()
    model.eval()(packed, **given)
    assert rows == [33, 33]


def test_sequences_and_batches_without_tokens_have_no_rows():
    model = make(BertForSequenceClassification, **NO_DROPOUT)
    for bounds in ([0, 0, 3, 3], [0, 0]):
        ids = torch.arange(5, 5 + bounds[-1])
        options = {"cu_seqlens": torch.tensor(bounds, dtype=torch.int32), "max_seqlen": bounds[-1]}
        expected = model.eval()(ids, **options).logits
        torch.testing.assert_close(model.train()(ids, **options).logits, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("where", ["bert", "bert.encoder", "bert.encoder.layer.1", "bert.encoder.layer.1.output.dense"])
def test_a_hook_sees_all_tokens(monkeypatch, where):
    model, given, packed, _ = pooled_only(BertForSequenceClassification)
    seen = []
    model.get_submodule(where).register_forward_hook(lambda module, inputs, output: seen.append(output))
    model(packed, **given)
    assert len(seen[0][0] if isinstance(seen[0], tuple) else getattr(seen[0], "last_hidden_state", seen[0])) == 33


def test_states_that_are_asked_for_are_of_all_tokens():
    model, given, packed, _ = pooled_only(BertForSequenceClassification)
    assert [len(state) for state in model(packed, **given, output_hidden_states=True).hidden_states] == [33] * 3
    model.config.output_hidden_states = True
    assert [len(state) for state in model(packed, **given).hidden_states] == [33] * 3


PARTS = ("attention", "intermediate", "output", "attention.output", "output.LayerNorm", "attention.output.LayerNorm")


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("place", ["", *PARTS], ids=["the layer", *PARTS])
def test_a_module_of_ones_own_sees_all_tokens(monkeypatch, training, place):
    """What it makes of a token may depend on the others, as a batch normalisation's result does."""
    model, given, packed, _ = pooled_only(BertForSequenceClassification)
    rows = rows_of_the_last_layer(monkeypatch)
    module = model.bert.encoder.layer[-1].get_submodule(place)
    module.__class__ = type("Own", (type(module),), {})
    model.train(training)(packed, **given)
    assert rows == [33, 33]
