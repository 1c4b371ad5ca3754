"""torch.compile(fullgraph=True) of whole models: the eager results, and hardly a recompile over all lengths."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.checkpoint import checkpoint

from fastbert import BertConfig, BertForPreTraining, BertModel, PackedBatch, rng

LENGTHS = (128, 2, 512, 1, 300)


def config(**options) -> BertConfig:
    rates = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    return BertConfig(vocab_size=100, max_position_embeddings=512, **sizes, **{**rates, **options})


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def packed(length: int) -> PackedBatch:
    batch = PackedBatch.from_sequences([torch.randint(5, 100, (n,)) for n in (length, max(length // 2, 1))])
    positions = torch.arange(0, batch.num_tokens, 5)
    labels, nsp = positions % 90, torch.tensor([0, 1])
    return dataclasses.replace(batch, mlm_positions=positions, mlm_labels=labels, nsp_labels=nsp)


def results(model, given) -> list[torch.Tensor]:
    model.zero_grad()
    out = model(given)
    found = [out.loss if isinstance(model_of(model), BertForPreTraining) else out.last_hidden_state]
    if model_of(model).training:
        found[0].square().mean().backward()
        found.append(model_of(model).get_parameter(next(iter(dict(model_of(model).named_parameters())))).grad.clone())
    return [t.detach() for t in found]


def model_of(model):
    return getattr(model, "_orig_mod", model)


@pytest.mark.parametrize(
    ("kind", "train"),
    [
        ("packed", True),
        ("padded", False),
        pytest.param("packed", False, marks=pytest.mark.slow),
        pytest.param("padded", True, marks=pytest.mark.slow),
    ],
)
def test_one_recompile_over_all_lengths(kind, train):
    """Lengths of 1 are a shape of their own to the compiler; all others share one graph."""
    model = (BertModel if kind == "padded" else BertForPreTraining)(config()).train(train)
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=counter)
    for length in LENGTHS:
        given = torch.randint(5, 100, (3, length)) if kind == "padded" else packed(length)
        for got, wanted in zip(results(compiled, given), results(model, given), strict=True):
            torch.testing.assert_close(got, wanted, rtol=2e-5, atol=2e-6)
    assert counter.frame_count <= 2


def test_dropout_is_drawn_anew_in_every_call_and_by_the_seed():
    """Of all four places: after embeddings, in attention, after its projection and the feed-forward network's."""
    model = BertForPreTraining(config(hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.3)).train()
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="aot_eager")
    for length in (12, 7):
        given, found = packed(length), []
        for either in (compiled, model, compiled):
            torch.manual_seed(length)
            model.zero_grad()
            either(given).loss.backward()
            found.append([p.grad.clone() for p in model.parameters()])
        for got, wanted, again in zip(*found, strict=True):
            torch.testing.assert_close(got, wanted, rtol=2e-5, atol=2e-6)
            assert torch.equal(got, again)
        assert len({compiled(given).loss.item() for _ in range(3)}) == 3


def test_dropout_of_a_batch_that_is_computed_with_its_padding():
    model = BertModel(config(attention_probs_dropout_prob=0.3)).train()
    compiled = torch.compile(model, backend="eager")
    ids, left = torch.randint(5, 100, (2, 6)), torch.tensor([[1] * 6, [0] * 2 + [1] * 4])
    states = []
    for either in (compiled, model):
        torch.manual_seed(2)
        states.append(either(ids, left).last_hidden_state)
    torch.testing.assert_close(*states, rtol=2e-5, atol=2e-6)


def _drawn(x: torch.Tensor) -> torch.Tensor:
    """What a dropout draws, such as it shows: x times a number of its own, squared."""
    return (x * (rng.current().state[0] % 9973 + 1)).square()


def test_two_passes_of_one_compiled_function_draw_apart():
    """As two passes over one batch do for contrastive learning; equal ops without arguments would be one."""
    both = torch.compile(lambda x: (_drawn(x), _drawn(x)), fullgraph=True, backend="aot_eager")
    one = torch.ones(1, dtype=torch.float64, requires_grad=True)  # graphs of training are those that are simplified
    first, second = both(one), both(one)
    assert len({drawn.item() for drawn in (*first, *second)}) == 4
    torch.manual_seed(0)
    once = both(one)
    torch.manual_seed(0)
    assert once == both(one)


def test_a_compiled_recomputation_draws_what_was_drawn():
    again = torch.compile(lambda x: checkpoint(_drawn, x, use_reentrant=False), fullgraph=True, backend="aot_eager")
    x = torch.full((1,), 3.0, dtype=torch.float64, requires_grad=True)
    out = again(x)
    out.backward()
    assert x.grad.item() == pytest.approx(2 * out.item() / 3)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_other_backends(backend):
    model = BertModel(config()).eval()
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=backend)
    for length in (64, 17, 200):
        ids = torch.randint(5, 100, (2, length))
        with torch.no_grad():
            torch.testing.assert_close(
                compiled(ids).last_hidden_state, model(ids).last_hidden_state, rtol=2e-5, atol=2e-6
            )


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("inputs", [1, 2], ids=["no mask", "mask"])
def test_an_export_is_refused_in_words(strict, inputs):
    ids = torch.ones(2, 5, dtype=torch.int64)
    with pytest.raises(Exception, match=r"torch\.export would keep where its example's tokens are"):
        torch.export.export(BertModel(config()).eval(), (ids,) * inputs, strict=strict)
