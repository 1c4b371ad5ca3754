"""The last layer computed only where a loss reads it: the same losses and gradients as computing all of it."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from fastbert import BertConfig, BertForMaskedLM, BertForPreTraining, PackedBatch, rng


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


@pytest.mark.parametrize("cls", [BertForPreTraining, BertForMaskedLM])
@pytest.mark.parametrize("recompute", [False, True])
def test_losses_and_gradients_are_the_same(cls, recompute):
    results = {}
    for which in ("all", "needed"):
        model = make(cls, **NO_DROPOUT)
        model.last_layer = which
        if recompute:
            model.gradient_checkpointing_enable()
        rows = []
        model.bert.encoder.layer[-1].output.register_forward_hook(lambda m, i, out, rows=rows: rows.append(len(out)))
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
