"""The seven heads against transformers' with the same weights: logits, losses and all gradients, under every mask."""

from __future__ import annotations

import hf_parity as hf
import pytest
import torch
import torch.nn.functional as F

from fastbert.models.logits import classification_loss
from fastbert.packing import PackedBatch

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["fp32", "fp64"])
EVERY_MASK = pytest.mark.parametrize("mask_name", hf.MASKS)


def _numbers(*shape, high=None, seed=7):
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.rand(*shape, generator=generator) if high is None else torch.randint(0, high, shape, generator=generator)
    )


def _token_labels(kept, classes):
    """A third of the kept tokens has a label; at least one has."""
    labels = _numbers(hf.BATCH, hf.LENGTH, high=classes)
    chosen = (_numbers(hf.BATCH, hf.LENGTH, seed=8) < 0.33) & kept
    chosen[0, -1] = kept[0, -1]
    return labels.masked_fill(~chosen, -100)


def _row_labels(kept, classes):
    """A label for every row that has tokens."""
    return _numbers(hf.BATCH, high=classes).masked_fill(~kept.any(1), -100)


# The softmax of these losses is over tokens or choices, which all get the same bias.
SPAN_BIASES = ("qa_outputs.bias", "layer.2.output.LayerNorm.bias")
CHOICE_BIASES = ("classifier.bias",)


def _compare(ours, theirs, dtype, got_loss, expected_loss, zero_biases=()):
    hf.assert_near(got_loss.detach().to(dtype), expected_loss.detach(), dtype, "loss")
    expected_loss.backward()
    got_loss.backward()
    hf.assert_same_gradients(ours, theirs, dtype, zero_biases)


@EVERY_MASK
@DTYPES
@pytest.mark.parametrize("activation", ["gelu", "gelu_new"])
def test_pre_training(mask_name, dtype, activation):
    theirs, ours = hf.pair("BertForPreTraining", dtype, hidden_act=activation)
    mask = hf.masks()[mask_name]
    kept = hf.kept_tokens(mask)
    labels = {"labels": _token_labels(kept, hf.VOCAB), "next_sentence_label": _row_labels(kept, 2)}
    expected = theirs(**hf.inputs(), attention_mask=mask, **labels)
    got = ours(**hf.inputs(), attention_mask=mask, **labels)
    assert got.prediction_logits is None, "with labels, only labelled tokens meet the vocabulary"
    labelled = labels["labels"] != -100
    hf.assert_near(got.mlm_logits, expected.prediction_logits[labelled], dtype, "mlm_logits")
    rows = kept.any(1)
    hf.assert_near(got.nsp_logits[rows], expected.seq_relationship_logits[rows], dtype, "nsp_logits")
    assert torch.equal(got.loss, got.mlm_loss + got.nsp_loss)
    full = ours(**hf.inputs(), attention_mask=mask, **labels, output_logits=True)
    hf.assert_near(full.prediction_logits[kept], expected.prediction_logits[kept], dtype, "prediction_logits")
    assert torch.equal(ours(**hf.inputs(), attention_mask=mask)[0], full.prediction_logits)
    _compare(ours, theirs, dtype, got.loss, expected.loss)


@pytest.mark.parametrize("name", ["BertForMaskedLM", "BertForPreTraining", "BertForTokenClassification"])
def test_labels_of_masked_tokens_count_on_no_path(name):
    """Probabilities, and left padding under a pooler, take the path on which masked tokens are computed."""
    _, ours = hf.pair(name)
    for mask in ("prefix", "left"):
        given, labels = hf.arguments(name, mask), hf.labels(name, mask)
        expected = ours(**given, **labels).loss
        labels["labels"] = labels["labels"].masked_fill(~hf.kept_tokens(given["attention_mask"]), 1)
        for attentions in (False, True):
            got = ours(**given, **labels, output_attentions=attentions).loss
            hf.assert_near(got, expected, torch.float32, "loss")


def test_pre_training_has_a_loss_only_with_both_labels():
    theirs, ours = hf.pair("BertForPreTraining")
    kept = hf.kept_tokens(None)
    for labels in ({"labels": _token_labels(kept, hf.VOCAB)}, {"next_sentence_label": _row_labels(kept, 2)}):
        assert theirs(**hf.inputs(), **labels).loss is None
        assert ours(**hf.inputs(), **labels).loss is None


@pytest.mark.parametrize("mask_name", ["none", "prefix", "holes"])
def test_pre_training_on_a_packed_batch(mask_name):
    """The trainer's form: packed tokens, positions of the labels, both losses."""
    theirs, ours = hf.pair("BertForPreTraining")
    mask = hf.masks()[mask_name]
    kept = hf.kept_tokens(mask)
    labels, next_sentence = _token_labels(kept, hf.VOCAB), _row_labels(kept, 2)
    expected = theirs(**hf.inputs(), attention_mask=mask, labels=labels, next_sentence_label=next_sentence)
    packed_labels = labels[kept]
    positions = (packed_labels != -100).nonzero().flatten()
    lengths = kept.sum(1)
    batch = PackedBatch(
        *(hf.inputs()[name][kept] for name in ("input_ids", "token_type_ids")),
        torch.arange(hf.LENGTH).expand(hf.BATCH, -1)[kept],
        F.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0)),
        int(lengths.max()),
        mlm_positions=positions,
        mlm_labels=packed_labels[positions],
        nsp_labels=next_sentence,
    )
    got = ours(batch)
    assert got.mlm_logits.shape == (positions.numel(), hf.VOCAB)
    hf.assert_near(got.nsp_logits, expected.seq_relationship_logits, torch.float32, "nsp_logits")
    _compare(ours, theirs, torch.float32, got.loss, expected.loss)


@EVERY_MASK
@DTYPES
def test_masked_lm(mask_name, dtype):
    theirs, ours = hf.pair("BertForMaskedLM", dtype)
    mask = hf.masks()[mask_name]
    kept = hf.kept_tokens(mask)
    labels = _token_labels(kept, hf.VOCAB)
    expected = theirs(**hf.inputs(), attention_mask=mask, labels=labels)
    got = ours(**hf.inputs(), attention_mask=mask, labels=labels, output_logits=True)
    hf.assert_near(got.logits[kept], expected.logits[kept], dtype, "logits")
    hf.assert_near(got.mlm_logits, expected.logits[labels != -100], dtype, "mlm_logits")
    _compare(ours, theirs, dtype, got.loss, expected.loss)


def test_masked_lm_with_its_own_decoder():
    theirs, ours = hf.pair("BertForMaskedLM", tie_word_embeddings=False)
    assert ours.cls.predictions.decoder.weight is not ours.bert.embeddings.word_embeddings.weight
    labels = _token_labels(hf.kept_tokens(None), hf.VOCAB)
    expected, got = theirs(**hf.inputs(), labels=labels), ours(**hf.inputs(), labels=labels)
    hf.assert_near(got.loss, expected.loss, torch.float32, "loss")


@EVERY_MASK
@DTYPES
def test_next_sentence_prediction(mask_name, dtype):
    theirs, ours = hf.pair("BertForNextSentencePrediction", dtype)
    mask = hf.masks()[mask_name]
    rows = hf.kept_tokens(mask).any(1)
    labels = _row_labels(hf.kept_tokens(mask), 2)
    expected = theirs(**hf.inputs(), attention_mask=mask, labels=labels)
    got = ours(**hf.inputs(), attention_mask=mask, labels=labels)
    hf.assert_near(got.logits[rows], expected.logits[rows], dtype, "logits")
    _compare(ours, theirs, dtype, got.loss, expected.loss)


@EVERY_MASK
@DTYPES
def test_sequence_classification(mask_name, dtype):
    theirs, ours = hf.pair("BertForSequenceClassification", dtype)
    mask = hf.masks()[mask_name]
    rows = hf.kept_tokens(mask).any(1)
    labels = _row_labels(hf.kept_tokens(mask), hf.LABELS)
    expected = theirs(**hf.inputs(), attention_mask=mask, labels=labels)
    got = ours(**hf.inputs(), attention_mask=mask, labels=labels)
    hf.assert_near(got.logits[rows], expected.logits[rows], dtype, "logits")
    _compare(ours, theirs, dtype, got.loss, expected.loss)


@pytest.mark.parametrize(
    ("num_labels", "labels", "problem_type"),
    [
        (1, _numbers(hf.BATCH), None),
        (1, _numbers(hf.BATCH, 1), None),
        (hf.LABELS, _numbers(hf.BATCH, hf.LABELS), "regression"),
        (hf.LABELS, _numbers(hf.BATCH, high=hf.LABELS), None),
        (hf.LABELS, _numbers(hf.BATCH, high=hf.LABELS).int().long(), "single_label_classification"),
        (hf.LABELS, _numbers(hf.BATCH, hf.LABELS, high=2).float(), None),
        (hf.LABELS, _numbers(hf.BATCH, hf.LABELS, high=2).float(), "multi_label_classification"),
    ],
    ids=["mse", "mse-column", "mse-many", "ce-inferred", "ce", "bce-inferred", "bce"],
)
def test_problem_types(num_labels, labels, problem_type):
    theirs, ours = hf.pair("BertForSequenceClassification", num_labels=num_labels, problem_type=problem_type)
    mask = hf.masks()["prefix"]
    expected = theirs(**hf.inputs(), attention_mask=mask, labels=labels)
    got = ours(**hf.inputs(), attention_mask=mask, labels=labels)
    hf.assert_near(got.logits, expected.logits, torch.float32, "logits")
    _compare(ours, theirs, torch.float32, got.loss, expected.loss)


def test_whole_numbers_for_one_output_are_regression():
    logits, labels = _numbers(hf.BATCH, 1), _numbers(hf.BATCH, high=5)
    torch.testing.assert_close(classification_loss(logits, labels, 1, None), F.mse_loss(logits[:, 0], labels.float()))


# An empty choice has no first token: transformers scores a token that only saw pads.
@pytest.mark.parametrize("mask_name", [name for name in hf.MASKS if "empty" not in name])
@DTYPES
def test_multiple_choice(mask_name, dtype):
    theirs, ours = hf.pair("BertForMultipleChoice", dtype)
    mask = hf.masks()[mask_name]
    positions = {"position_ids": torch.arange(hf.LENGTH).flip(0).repeat(4, 1)}
    shaped = {name: x.view(2, 2, hf.LENGTH) for name, x in (hf.inputs() | positions).items()}
    mask = None if mask is None else mask.view(2, 2, hf.LENGTH)
    labels = torch.tensor([1, 0])
    expected = theirs(**shaped, attention_mask=mask, labels=labels)
    got = ours(**shaped, attention_mask=mask, labels=labels)
    assert got.logits.shape == (2, 2)
    hf.assert_near(got.logits, expected.logits, dtype, "logits")
    _compare(ours, theirs, dtype, got.loss, expected.loss, CHOICE_BIASES)


@EVERY_MASK
@DTYPES
def test_token_classification(mask_name, dtype):
    theirs, ours = hf.pair("BertForTokenClassification", dtype)
    mask = hf.masks()[mask_name]
    kept = hf.kept_tokens(mask)
    labels = _token_labels(kept, hf.LABELS)
    expected = theirs(**hf.inputs(), attention_mask=mask, labels=labels)
    got = ours(**hf.inputs(), attention_mask=mask, labels=labels)
    hf.assert_near(got.logits[kept], expected.logits[kept], dtype, "logits")
    _compare(ours, theirs, dtype, got.loss, expected.loss)


def _answers(kept):
    """The first and the last kept token of each row; a row without tokens has none (S = ignored)."""
    columns = torch.arange(hf.LENGTH).expand_as(kept)
    first = torch.where(kept, columns, hf.LENGTH).amin(1)
    last = torch.where(kept, columns, -1).amax(1)
    return first, torch.where(kept.any(1), last, hf.LENGTH)


@EVERY_MASK
@DTYPES
def test_question_answering(mask_name, dtype):
    """Under a mask the softmax is over kept tokens; transformers' includes pads, so its logits lose them here."""
    theirs, ours = hf.pair("BertForQuestionAnswering", dtype, num_labels=2)
    mask = hf.masks()[mask_name]
    kept = hf.kept_tokens(mask)
    start, end = _answers(kept)
    expected = theirs(**hf.inputs(), attention_mask=mask, start_positions=start, end_positions=end)
    got = ours(**hf.inputs(), attention_mask=mask, start_positions=start, end_positions=end)
    hf.assert_near(got.start_logits[kept], expected.start_logits[kept], dtype, "start_logits")
    hf.assert_near(got.end_logits[kept], expected.end_logits[kept], dtype, "end_logits")
    loss = expected.loss
    if mask is not None:
        rows = kept.any(1)
        parts = [
            F.cross_entropy(logits.masked_fill(~kept, float("-inf"))[rows], answers[rows])
            for logits, answers in ((expected.start_logits, start), (expected.end_logits, end))
        ]
        loss = sum(parts) / 2
    _compare(ours, theirs, dtype, got.loss, loss, SPAN_BIASES)


def test_an_answer_on_a_pad_counts_for_nothing():
    """As one past the end; of (B, S) and of packed tokens."""
    _, ours = hf.pair("BertForQuestionAnswering", num_labels=2)
    mask = hf.masks()["prefix"]
    kept = hf.kept_tokens(mask)
    start, end = _answers(kept)
    shortest = int(kept.sum(1).argmin())
    ids = hf.inputs()["input_ids"]
    packed = PackedBatch.from_sequences([row[keep] for row, keep in zip(ids, kept, strict=True)])
    losses = []
    for place in (int(kept.sum(1)[shortest]), hf.LENGTH - 1, hf.LENGTH):
        start[shortest] = place
        answers = {"start_positions": start, "end_positions": end}
        losses += [ours(ids, attention_mask=mask, **answers).loss.item(), ours(packed, **answers).loss.item()]
    assert losses == pytest.approx([losses[-1]] * 6, rel=1e-5)


def test_question_answering_clamps_answers_outside():
    theirs, ours = hf.pair("BertForQuestionAnswering", num_labels=2)
    start = torch.tensor([0, 3, hf.LENGTH, 500])
    end = torch.tensor([[2], [10], [hf.LENGTH + 1], [4]])
    expected = theirs(**hf.inputs(), start_positions=start, end_positions=end)
    got = ours(**hf.inputs(), start_positions=start, end_positions=end)
    _compare(ours, theirs, torch.float32, got.loss, expected.loss, SPAN_BIASES)
    # A negative answer is one at column 0, as transformers clamps it.
    start = torch.tensor([-5, 3, 2, 1])
    expected = theirs(**hf.inputs(), start_positions=start, end_positions=end)
    got = ours(**hf.inputs(), start_positions=start, end_positions=end)
    hf.assert_near(got.loss.detach(), expected.loss.detach(), torch.float32, "loss")


@pytest.mark.parametrize(
    "head", ["SequenceClassification", "TokenClassification", "QuestionAnswering", "MultipleChoice"]
)
def test_a_packed_batch_gives_the_logits_of_the_rectangle(head):
    theirs, ours = hf.pair(f"BertFor{head}", num_labels=2)
    mask = hf.masks()["prefix"]
    kept = hf.kept_tokens(mask)
    ids, types = (hf.inputs()[x] for x in ("input_ids", "token_type_ids"))
    lengths = kept.sum(1).tolist()
    batch = PackedBatch.from_sequences(
        [row[:n] for row, n in zip(ids, lengths, strict=True)], [row[:n] for row, n in zip(types, lengths, strict=True)]
    )
    if head == "MultipleChoice":
        expected = theirs(*(x.view(2, 2, hf.LENGTH) for x in (ids, mask, types)), labels=torch.tensor([1, 0]))
        got = ours(batch, num_choices=2, labels=torch.tensor([1, 0]))
        hf.assert_near(got.loss, expected.loss, torch.float32, "loss")
        hf.assert_near(got.logits, expected.logits, torch.float32, "logits")
    elif head == "QuestionAnswering":
        expected = theirs(ids, mask, types)
        start, end = _answers(kept)
        got = ours(batch, start_positions=start, end_positions=end)
        hf.assert_near(got.start_logits, expected.start_logits[kept], torch.float32, "start_logits")
        hf.assert_near(got.end_logits, expected.end_logits[kept], torch.float32, "end_logits")
        rectangle = ours(ids, mask, types, start_positions=start, end_positions=end)
        hf.assert_near(got.loss, rectangle.loss, torch.float32, "loss")
    else:
        per_token = head == "TokenClassification"
        labels = _token_labels(kept, 2) if per_token else _row_labels(kept, 2)
        expected = theirs(ids, mask, types, labels=labels)
        got = ours(batch, labels=labels[kept] if per_token else labels)
        hf.assert_near(got.loss, expected.loss, torch.float32, "loss")
        logits = expected.logits[kept] if per_token else expected.logits
        hf.assert_near(got.logits, logits, torch.float32, "logits")
