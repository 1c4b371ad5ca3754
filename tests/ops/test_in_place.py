"""The word table's gradient that the embedding adds by itself is the one that autograd brings."""

import pytest
import torch
from close import assert_close

from fastbert import BertConfig, BertForPreTraining, _native, ops, optim
from fastbert.ops import _cpu_linear
from fastbert.packing import PackedBatch
from fastbert.rng import DropoutKey, use
from fastbert.train.engine import LocalEngine

pytestmark = pytest.mark.skipif(_native.why_missing() is not None, reason=str(_native.why_missing()))

NAME = "bert.embeddings.word_embeddings.weight"


def model_and_batch(tied: bool = True, seed: int = 0):
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=48,
        max_position_embeddings=40, tie_word_embeddings=tied,
    )  # fmt: skip
    sequences = [torch.randint(50, (n,)) for n in (31, 1, 40)]  # ids come again, and 0, the pad, is among them
    batch = PackedBatch.from_sequences(
        sequences,
        mlm_positions=torch.tensor([2, 30, 31, 50]),
        mlm_labels=torch.tensor([7, 7, 8, 0]),
        nsp_labels=torch.tensor([0, 1, 0]),
    )
    assert (batch.input_ids == 0).any()
    return BertForPreTraining(config).train(), batch


def gradients(model, batch, in_place: bool, times: int = 1) -> dict[str, torch.Tensor]:
    model.zero_grad(set_to_none=True)
    for number in range(times):
        with use(DropoutKey(3, number)), ops.gradients_in_place(in_place):
            loss = model(batch).loss
        loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("times", [1, 3])
def test_the_same_gradients(tied, times):
    model, batch = model_and_batch(tied)
    plain, own = (gradients(model, batch, in_place, times) for in_place in (False, True))
    with ops.backend("reference"):
        shadow = gradients(model, batch, False, times)
        truth = gradients(model.double(), batch, False, times)
    assert plain.keys() == own.keys()
    for name, gradient in own.items():
        if name == NAME:
            assert_close(gradient, truth[name], shadow[name], gradient=True)
            assert not gradient.equal(torch.zeros_like(gradient))
        else:
            assert gradient.equal(plain[name]), name


def test_the_pad_gets_none():
    model, batch = model_and_batch(tied=False)
    assert not gradients(model, batch, True)[NAME][0].any()


def test_bits_do_not_depend_on_threads():
    model, batch = model_and_batch()
    found, before = [], torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(gradients(model, batch, True)[NAME])
    finally:
        torch.set_num_threads(before)
    assert found[0].equal(found[1])


@pytest.mark.parametrize("listener", ["register_hook", "register_post_accumulate_grad_hook"])
def test_who_listens_hears_the_whole_gradient(listener):
    model, batch = model_and_batch(tied=False)
    heard = []
    word = model.get_parameter(NAME)
    getattr(word, listener)(lambda x: heard.append((x.grad if x is word else x).clone()) or None)
    expected = gradients(model, batch, True)[NAME]
    assert len(heard) == 1
    assert heard[0].equal(expected)


def test_nothing_else_is_trained(monkeypatch):
    """Then nothing but the word table leads backward to the embedding."""
    # On AMD's processors small products would be torch's where their weight trains, and round otherwise than ours.
    monkeypatch.setattr(_cpu_linear, "TRAINING_ROWS", 0)
    monkeypatch.setattr(_cpu_linear, "TRAINING_PRODUCTS", 0)
    model, batch = model_and_batch(tied=False)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name == NAME)
    model.zero_grad(set_to_none=True)
    with use(DropoutKey(3, 0)), ops.gradients_in_place():
        model(batch).loss.backward()
    alone = model.get_parameter(NAME).grad
    assert alone.any()
    model.requires_grad_(True)
    assert_close(gradients(model, batch, True)[NAME], alone.double(), alone, gradient=True)


def test_outside_an_engine_autograd_has_it():
    model, batch = model_and_batch()
    gradients(model, batch, True)  # which leaves nothing to a later pass
    model.zero_grad(set_to_none=True)
    loss = model(batch).loss
    (gradient,) = torch.autograd.grad(loss, [model.get_parameter(NAME)])
    assert model.get_parameter(NAME).grad is None
    assert gradient[batch.input_ids.unique()[1:]].any(1).all()


def test_engines_that_wait_for_autograd_do_not_use_it():
    from fastbert.train.engines.ddp import DDPEngine

    model, batch = model_and_batch()
    assert LocalEngine(model, optim.AdamW(model.parameters(), lr=1e-3)).gradients_in_place
    assert not DDPEngine.gradients_in_place
    seen = []
    engine = LocalEngine(model, optim.AdamW(model.parameters(), lr=1e-3))
    engine.gradients_in_place = False
    real = ops._in_place.add_rows
    ops._in_place.add_rows = lambda *arguments: seen.append(1) or real(*arguments)
    try:
        engine.backward(lambda: model(batch).loss)
        assert not seen
        engine.gradients_in_place = True
        engine.backward(lambda: model(batch).loss)
        assert seen
    finally:
        ops._in_place.add_rows = real
