"""A BiLSTM between encoder and head: torch's LSTM run sequence by sequence, on every layout and under every head."""

from __future__ import annotations

import copy
import itertools

import numpy as np
import pytest
import torch
from close import assert_close
from torch import nn

from fastbert import (
    BertConfig,
    BertForMultipleChoice,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    PackedBatch,
    ops,
)
from fastbert.errors import BackendError
from fastbert.modules.bilstm import over_sequences
from fastbert.tasks import registry
from fastbert.tasks.config import TaskOptions

CONFIG = BertConfig(
    vocab_size=50,
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=24,
    max_position_embeddings=16,
    bilstm_units=5,
    num_labels=3,
)
ROWS = [[7, 8, 9, 10, 11], [12], [13, 14, 15]]


def make(cls):
    torch.manual_seed(0)
    return cls(CONFIG).eval()


def by_hand(lstm: nn.LSTM, x: torch.Tensor) -> torch.Tensor:
    """(L, H) -> (L, 2 units): each direction as an LSTM of its own."""
    ways = []
    for suffix in ("", "_reverse"):
        one = nn.LSTM(lstm.input_size, lstm.hidden_size)
        one.load_state_dict({name: getattr(lstm, name + suffix) for name, _ in one.named_parameters()})
        ways.append(one(x.flip(0))[0].flip(0) if suffix else one(x)[0])
    return torch.cat(ways, -1)


def test_sequences_of_every_length_and_none():
    torch.manual_seed(0)
    lstm, x = nn.LSTM(4, 3, bidirectional=True), torch.randn(9, 4)
    bounds = torch.tensor([0, 5, 5, 6, 9, 9], dtype=torch.int32)
    expected = torch.cat([by_hand(lstm, part) for part in (x[:5], x[5:6], x[6:])])
    torch.testing.assert_close(over_sequences(lstm, x, bounds), expected)
    assert over_sequences(lstm, x[:0], torch.zeros(1, dtype=torch.int32)).shape == (0, 6)


@pytest.mark.parametrize("directions", [1, 2])
def test_results_and_gradients_of_torchs_lstm(directions):
    """Two layers over packed sequences: the same numbers as `torch.nn.LSTM` run by itself, and of its own backward."""
    torch.manual_seed(0)
    truth = nn.LSTM(4, 3, num_layers=2, bidirectional=directions == 2).double()
    lengths = [2, 7, 1, 0, 4]
    bounds = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32)
    x, weights = torch.randn(14, 4).double(), torch.randn(14, 3 * directions).double()

    def run(lstm, ours: bool) -> list[torch.Tensor]:
        dtype = lstm.weight_ih_l0.dtype
        inputs = x.to(dtype, copy=True).requires_grad_()
        if ours:
            out = over_sequences(lstm, inputs, bounds)
        else:
            packed = nn.utils.rnn.pack_sequence([part for part in inputs.split(lengths) if len(part)], False)
            out = torch.cat(nn.utils.rnn.unpack_sequence(lstm(packed)[0]))
        return [out.detach(), *torch.autograd.grad((out * weights.to(dtype)).sum(), [inputs, *lstm.parameters()])]

    single = copy.deepcopy(truth).float()
    results = run(truth, False), run(single, False), run(single, True)
    for number, (exact, same, got) in enumerate(zip(*results, strict=True)):
        assert_close(got, exact, same, gradient=number > 0)
    for got, exact in zip(run(truth, True), results[0], strict=True):
        torch.testing.assert_close(got, exact, rtol=1e-12, atol=1e-14)


def test_second_derivatives_are_refused():
    x = torch.randn(7, 6, requires_grad=True)
    states = over_sequences(nn.LSTM(6, 5), x, torch.tensor([0, 3, 7], dtype=torch.int32))
    with pytest.raises(BackendError, match="expected a loss without second derivatives"):
        torch.autograd.grad(states.sum(), x, create_graph=True)


def test_a_sequences_bits_are_its_own_in_batch_invariant_mode():
    torch.manual_seed(0)
    lstm, x = nn.LSTM(40, 24, num_layers=2, bidirectional=True), torch.randn(60, 40)
    bounds = torch.tensor([0, 9, 11, 40, 60], dtype=torch.int32)
    with torch.inference_mode(), ops.batch_invariant():
        together = over_sequences(lstm, x, bounds)
        for begin, end in itertools.pairwise(bounds.tolist()):
            alone = over_sequences(lstm, x[begin:end], torch.tensor([0, end - begin], dtype=torch.int32))
            assert torch.equal(alone, together[begin:end])


def states(model) -> list[torch.Tensor]:
    return [by_hand(model.bilstm.lstm, model.bert(PackedBatch.from_sequences([row])).last_hidden_state) for row in ROWS]


def padded() -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.zeros(3, 5, dtype=torch.int64)
    for b, row in enumerate(ROWS):
        ids[b, : len(row)] = torch.tensor(row)
    return ids, (ids > 0).long()


@pytest.mark.parametrize("way", ["packed", "padded", "rectangle", "left"])
def test_a_sequence_is_the_two_ends(way):
    model = make(BertForSequenceClassification)
    assert model.bert.pooler is None
    ids, mask = padded()
    with torch.no_grad():
        ends = torch.stack([torch.cat([out[-1, :5], out[0, 5:]]) for out in states(model)])
        expected = model.classifier(ends)
        if way == "packed":
            logits = model(PackedBatch.from_sequences(ROWS)).logits
        elif way == "left":  # padded there, where the first token that counts is not the first of the row
            ids, mask = ids.flip(1), mask.flip(1)
            for row, kept in zip(ids, mask.bool(), strict=True):
                row[kept] = row[kept].flip(0)
            places = (mask.cumsum(1) - 1).clamp(min=0)
            logits = model(ids, attention_mask=mask, position_ids=places, output_attentions=True).logits
        else:
            logits = model(ids, attention_mask=mask, output_attentions=way == "rectangle").logits
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)


def test_tokens_spans_and_choices():
    tagger, spans, choices = map(make, (BertForTokenClassification, BertForQuestionAnswering, BertForMultipleChoice))
    batch = PackedBatch.from_sequences(ROWS)
    with torch.no_grad():
        torch.testing.assert_close(
            tagger(batch).logits, tagger.classifier(torch.cat(states(tagger))), rtol=1e-4, atol=1e-5
        )
        start = spans.qa_outputs(torch.cat(states(spans)))[:, 0]
        torch.testing.assert_close(spans(batch).start_logits, start, rtol=1e-4, atol=1e-5)
        ends = torch.stack([torch.cat([out[-1, :5], out[0, 5:]]) for out in states(choices)])
        logits = choices(batch, num_choices=3).logits
        torch.testing.assert_close(logits, choices.classifier(ends).view(1, 3), rtol=1e-4, atol=1e-5)
        ids, mask = padded()
        rectangle = tagger(ids, attention_mask=mask, output_attentions=True).logits
        torch.testing.assert_close(rectangle[mask > 0], tagger(batch).logits, rtol=1e-4, atol=1e-5)


def test_it_is_trained_saved_and_read_back_and_new_on_a_pretrained_encoder(tmp_path):
    BertForPreTraining(BertConfig.from_dict(CONFIG.to_dict(), bilstm_units=None)).save_pretrained(tmp_path / "base")
    model = BertForSequenceClassification.from_pretrained(tmp_path / "base", num_labels=3, bilstm_units=4).train()
    assert any(name.startswith("bilstm.") for name in model.load_report.missing)
    model(PackedBatch.from_sequences(ROWS), labels=torch.tensor([0, 1, 2])).loss.backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.bilstm.parameters())
    model.eval().save_pretrained(tmp_path / "tuned")
    task = registry.get("sst2")
    task.configure(TaskOptions(bilstm=6))
    assert task.model(tmp_path / "base").bilstm.units == 6
    again = BertForSequenceClassification.from_pretrained(tmp_path / "tuned")
    assert not again.load_report.missing
    batch = PackedBatch.from_sequences(ROWS)
    with torch.no_grad():
        assert torch.equal(again(batch).logits, model(batch).logits)
