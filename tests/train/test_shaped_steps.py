"""Fine-tuning steps on batches that are filled up to a few shapes are the steps of the batches as they are."""

from __future__ import annotations

import pytest
import torch

from fastbert import (
    BertConfig,
    BertForMultipleChoice,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    PackedBatch,
    optim,
)
from fastbert.train import shaped_steps
from fastbert.train.engine import LocalEngine
from fastbert.train.shaped_steps import ShapedSteps, shape_of

LR = 1e-3
SIZES = {
    "vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48,
    "max_position_embeddings": 80, "num_labels": 3,
}  # fmt: skip
HEADS = (BertForSequenceClassification, BertForTokenClassification, BertForQuestionAnswering, BertForMultipleChoice)


def engine_of(head: type, num_labels: int = 3, **options) -> LocalEngine:
    torch.manual_seed(0)
    model = head(BertConfig(**SIZES | {"num_labels": num_labels})).train()
    return LocalEngine(model, optim.AdamW(optim.param_groups(model, 0.01), lr=LR), seed=5, **options)


def draw(head: type, seed: int, rows: int = 4) -> tuple[PackedBatch, dict]:
    generator = torch.Generator().manual_seed(seed)
    choices = 3 if head is BertForMultipleChoice else 1
    lengths = torch.randint(2, 70, (rows * choices,), generator=generator).tolist()
    batch = PackedBatch.from_sequences([torch.randint(1, 60, (n,), generator=generator) for n in lengths])
    classes = torch.randint(0, 3, (batch.num_tokens,), generator=generator)
    if head is BertForTokenClassification:
        classes[::3] = -100
        return batch, {"labels": classes}
    if head is BertForQuestionAnswering:
        ends = torch.tensor([1, 10**6, 0, 1])[:rows]  # one lies past its window
        return batch, {"start_positions": classes[:rows] % 2, "end_positions": ends}
    return batch, {"labels": classes[:rows]} | ({"num_choices": 3} if choices == 3 else {})


@pytest.mark.parametrize(
    ("head", "num_labels", "precision"),
    [
        *((head, 3, "fp32") for head in HEADS),
        pytest.param(BertForSequenceClassification, 1, "fp32", id="regression"),
        pytest.param(BertForSequenceClassification, 1, "bf16", id="regression on whole numbers"),
        (BertForSequenceClassification, 3, "bf16"),
        (BertForSequenceClassification, 3, "fp16"),
    ],
)
def test_losses_norms_and_weights_are_those_of_the_batches_as_they_are(head, num_labels, precision):
    static, plain = (engine_of(head, num_labels, on_device=on, precision=precision) for on in (True, False))
    for engine in (static, plain):
        engine.scale.restore({"scale": 1024.0, "good": 0})  # of fp16: at its first one these gradients overflow
    steps = ShapedSteps(static, 4, 80)
    for seed, rows in enumerate((4, 4, 2, 4, 1, 4)):
        batch, labels = draw(head, seed, rows)
        if num_labels == 1:
            numbers = 5 * torch.rand(rows, generator=torch.Generator().manual_seed(seed))
            labels = {"labels": numbers if precision == "fp32" else numbers.long()}
        assert steps.takes(batch, labels)
        rate = LR * (1 - seed / 10)
        loss, norm = steps.run(batch, labels, rate, {}).tolist()
        wanted = plain.backward(lambda batch=batch, labels=labels: plain.forward(batch, **labels).loss)
        assert loss == pytest.approx(float(wanted), rel=1e-5)
        assert norm == pytest.approx(plain.step(rate), rel=1e-4)
    for a, b in zip(static.parameters, plain.parameters, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=2e-5 if precision == "fp32" else 1e-4)
        assert a.grad is None
    assert static.micro_step == plain.micro_step == 6
    static.settle()
    assert static.skipped == 0


def test_another_step_between_them_takes_its_place_in_the_stream_of_dropout():
    head = BertForSequenceClassification
    static, plain = engine_of(head, on_device=True), engine_of(head)
    steps, read = ShapedSteps(static, 4, 80), []
    key = steps._random.key
    steps._random.key = lambda engine: (given := key(engine), read.append(given.state.tolist()))[0]
    batch, labels = draw(head, 0)
    for number in range(4):
        wanted = plain.backward(lambda: plain.forward(batch, **labels).loss)
        plain.step(LR)
        if number == 1:
            loss = static.backward(lambda: static.forward(batch, **labels).loss)
            static.step(LR)
        else:
            loss, _ = steps.run(batch, labels, LR, {})
        assert float(loss) == pytest.approx(float(wanted), rel=1e-5)
    assert read == [[5, 0], [5, 2], [5, 3]], "what a GPU's kernels read in memory"


def test_a_gradient_that_is_not_finite_is_skipped():
    engine = engine_of(BertForSequenceClassification, on_device=True)
    steps, before = ShapedSteps(engine, 4, 80), [p.clone() for p in engine.parameters]
    with torch.no_grad():
        engine.model.classifier.bias[0] = float("nan")
    loss, norm = steps.run(*draw(BertForSequenceClassification, 0), LR, {}).tolist()
    assert loss != loss
    assert norm != norm
    engine.settle()
    assert engine.skipped == 1
    assert all(torch.equal(a, b) for a, b in zip(engine.parameters[:-1], before[:-1], strict=True))


def test_what_cannot_be_filled_up_is_left_to_ordinary_steps():
    engine = engine_of(BertForSequenceClassification, on_device=True)
    steps, (batch, labels) = ShapedSteps(engine, 4, 80), draw(BertForSequenceClassification, 0)
    refused = [
        {},
        {"labels": torch.zeros(4, 3)},  # several labels at once
        {"labels": labels["labels"][:3]},
        {**labels, "lm_weight": 0.5},
        {**labels, "num_choices": (1, 1, 1, 1)},
    ]
    assert not any(steps.takes(batch, each) for each in refused)
    for more in (
        {"nsp_labels": torch.tensor([0])},
        {"mlm_positions": torch.tensor([0]), "mlm_labels": torch.tensor([3])},
    ):
        assert not steps.takes(PackedBatch.from_sequences([[1, 2]], **more), {"labels": torch.tensor([1])})
    assert steps.takes(batch, labels)
    for problem, taken in ((None, True), ("regression", True), ("multi_label_classification", False)):
        engine = engine_of(BertForSequenceClassification, 1, on_device=True)
        engine.model.config.problem_type = problem
        steps = ShapedSteps(engine, 4, 80)
        assert steps.takes(batch, {"labels": torch.rand(4)}) is taken
        assert not steps.takes(batch, {"labels": torch.rand(3)})


def test_there_are_few_shapes_and_little_padding():
    shapes, added, tokens = set(), 0, 0
    generator = torch.Generator().manual_seed(0)
    for _ in range(300):
        lengths = (53 + 12 * torch.randn(32, generator=generator)).clamp(24, 103).int().tolist()
        batch = PackedBatch.from_sequences([[1] * n for n in lengths])
        shape = shape_of(batch, 32, 512)
        assert shape.tokens >= batch.num_tokens
        assert shape.max_seqlen >= batch.max_seqlen
        shapes.add(shape)
        added, tokens = added + shape.tokens - batch.num_tokens, tokens + batch.num_tokens
    assert len(shapes) <= 8
    assert added < 0.05 * tokens


def test_sequences_of_padding_are_no_longer_than_the_model_takes():
    batch = PackedBatch.from_sequences([[1] * 75, [1] * 3])
    assert shape_of(batch, 2, 80).max_seqlen == 80
    assert shape_of(batch, 2, 512).max_seqlen == 128
    assert shape_of(PackedBatch.from_sequences([[1] * 300]), 1, 512).max_seqlen == 384


def test_why_not(monkeypatch):
    engine = engine_of(BertForSequenceClassification)
    assert shaped_steps.why_not(engine) is None
    with monkeypatch.context() as patch:
        patch.setattr(engine, "__class__", type("OfSeveral", (LocalEngine,), {}))
        assert shaped_steps.why_not(engine) == "steps of several processes are not captured"
    monkeypatch.setattr(type(engine.model), "fixed_shapes", False, raising=False)
    assert "read the lengths of sequences on the host" in shaped_steps.why_not(engine)
    torch.manual_seed(0)
    model = BertForTokenClassification(BertConfig(**SIZES, bilstm_units=8))
    other = LocalEngine(model, optim.AdamW(model.parameters(), lr=LR))
    assert "BertForTokenClassification read the lengths" in shaped_steps.why_not(other)
