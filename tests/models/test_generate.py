"""`generate`: transformers' tokens under greedy, the same with and without kept keys, draws that a seed repeats."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers
from packaging.version import Version
from tiny_gpt import KINDS, SIZES, ids, theirs
from transformers.generation.logits_process import (
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

import fastbert
from fastbert.errors import BackendError, InputError
from fastbert.models.generation import _draw, filtered
from fastbert.models.gpt import GPTForPreTraining


@pytest.fixture(scope="module", params=KINDS)
def pair(request, tmp_path_factory):
    """transformers' model, and ours from its directory."""
    reference = theirs(request.param)
    directory = tmp_path_factory.mktemp("generate")
    reference.save_pretrained(directory)
    return reference, GPTForPreTraining.from_pretrained(directory)


def test_greedy_is_that_of_transformers_token_by_token(pair):
    reference, model = pair
    prompts = ids(3, 7)
    expected = reference.generate(prompts, do_sample=False, max_new_tokens=15, eos_token_id=None, pad_token_id=0)
    for use_cache in (True, False):
        got = model.generate(prompts, max_new_tokens=15, eos_token_id=(), use_cache=use_cache)
        assert torch.equal(got, expected)
    assert len(expected[:, 7:].unique()) > 3  # not one token over and over


def test_the_last_token_needs_no_position(pair):
    reference, model = pair
    prompts = ids(2, SIZES["n_positions"] - 1)
    for count in (1, 2):
        expected = reference.generate(prompts, do_sample=False, max_new_tokens=count, eos_token_id=None, pad_token_id=0)
        for use_cache in (True, False):
            assert torch.equal(
                model.generate(prompts, max_new_tokens=count, eos_token_id=(), use_cache=use_cache), expected
            )


def test_left_padded_prompts_and_ends(pair):
    reference, model = pair
    if Version(transformers.__version__) < Version("5.0.0.dev0") and reference.config.model_type == "openai-gpt":
        pytest.skip("version 4 counts the positions of a GPT from its pads on")
    prompts, mask = ids(3, 8), torch.ones(3, 8, dtype=torch.int64)
    mask[0, :5], mask[2, :2] = 0, 0
    free = reference.generate(
        prompts, attention_mask=mask, do_sample=False, max_new_tokens=12, eos_token_id=None, pad_token_id=0
    )
    end = int(free[1, 8 + 4])  # a token that does come, so that a row ends early
    options = {"do_sample": False, "max_new_tokens": 12, "eos_token_id": end, "pad_token_id": 0}
    expected = reference.generate(prompts, attention_mask=mask, **options)
    assert torch.equal(model.generate(prompts, mask, **options), expected)
    ragged = [row[keep != 0].tolist() for row, keep in zip(prompts, mask, strict=True)]
    lists = model.generate(ragged, max_new_tokens=12, eos_token_id=end)
    for row, prompt, whole in zip(lists, ragged, expected.tolist(), strict=True):
        new = whole[8:]
        new = new[: new.index(end) + 1] if end in new else new
        assert row == prompt + new
    assert model.generate(ragged, max_new_tokens=12, eos_token_id=np.int64(end)) == lists


def test_what_fills_up_a_row_is_the_pad_that_was_given(pair, monkeypatch):
    _, model = pair
    prompts = ids(3, 4)
    free = model.generate(prompts, max_new_tokens=12, eos_token_id=())[:, 4:].tolist()
    # A token that ends one row and not another, which goes on to the end.
    row, end = next((row, token) for row, new in enumerate(free) for token in new if any(token not in o for o in free))
    kept = free[row][: free[row].index(end) + 1]
    monkeypatch.setattr(model.config, "pad_token_id", 5)
    for given, pad in (({}, 5), ({"pad_token_id": 9}, 9), ({"pad_token_id": 0}, 0)):
        out = model.generate(prompts, max_new_tokens=12, eos_token_id=end, **given)
        assert out[row, 4:].tolist() == kept + [pad] * (12 - len(kept))


def test_a_row_is_drawn_alike_alone_and_among_others(pair):
    _, model = pair
    prompts = [ids(5).tolist(), ids(9).tolist()]
    options = {
        "do_sample": True,
        "temperature": 1.3,
        "top_k": 20,
        "top_p": 0.9,
        "max_new_tokens": 10,
        "eos_token_id": (),
    }
    first = model.generate(prompts, seed=4, **options)
    assert model.generate(prompts, seed=4, **options) == first
    assert model.generate(prompts, seed=4, use_cache=False, **options) == first
    assert model.generate(prompts[:1], seed=4, **options) == first[:1]
    assert model.generate(prompts, seed=5, **options) != first
    torch.manual_seed(0)
    drawn = [model.generate(prompts, **options) for _ in range(2)]
    torch.manual_seed(0)
    assert [model.generate(prompts, **options) for _ in range(2)] == drawn
    assert drawn[0] != drawn[1]


@pytest.mark.parametrize("temperature", [0.7, 1.0])
@pytest.mark.parametrize(
    ("top_k", "top_p"), [(None, None), (5, None), (100, None), (None, 0.6), (12, 0.8), (None, 0.01)]
)
def test_filters_are_those_of_transformers(temperature, top_k, top_p):
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(2)) * 2
    expected = TemperatureLogitsWarper(temperature)(None, logits)
    if top_k is not None:
        expected = TopKLogitsWarper(top_k)(None, expected)
    if top_p is not None:
        expected = TopPLogitsWarper(top_p)(None, expected)
    torch.testing.assert_close(filtered(logits, temperature, top_k, top_p), expected)


@pytest.mark.parametrize("temperature", [1e-3, 1e-40, 1e-300])
def test_next_to_no_temperature_takes_the_most_probable_token(pair, temperature):
    _, model = pair
    prompts = ids(2, 4)
    greedy = model.generate(prompts, max_new_tokens=6, eos_token_id=())
    options = {"do_sample": True, "temperature": temperature, "seed": 0}
    assert torch.equal(model.generate(prompts, max_new_tokens=6, eos_token_id=(), **options), greedy)


def test_numbers_of_numpy_are_numbers(pair):
    _, model = pair
    plain = {"max_new_tokens": 5, "top_k": 7, "top_p": 0.75, "temperature": 0.5, "seed": 4, "pad_token_id": 0}
    kinds = (np.int64, np.int32, np.float32, np.float32, np.uint8, np.int16)
    others = {name: kind(value) for (name, value), kind in zip(plain.items(), kinds, strict=True)}
    expected = model.generate(ids(2, 4), do_sample=True, **plain)
    assert torch.equal(model.generate(ids(2, 4), do_sample=True, **others), expected)


def test_draws_have_the_distribution_of_the_logits(pair):
    """4,000 draws of one token: each share within five standard deviations of its probability."""
    _, model = pair
    if model.config.model_type != "gpt2" or not model.config.tie_word_embeddings:
        pytest.skip("one kind is enough: the draws know nothing of it")
    prompt = ids(1, 3)
    with torch.no_grad():
        shares = filtered(model(prompt).logits[:, -1], 0.8, 6, None).softmax(-1)[0]
    count = 4000
    out = model.generate(prompt.expand(count, 3), do_sample=True, temperature=0.8, top_k=6, max_new_tokens=1, seed=1)
    found = torch.bincount(out[:, 3], minlength=SIZES["vocab_size"]) / count
    assert int((found > 0).sum()) <= 6
    assert bool(((found - shares).abs() <= 5 * (shares * (1 - shares) / count).sqrt()).all())


def test_the_least_draw_takes_no_token_that_was_left_out():
    logits = torch.tensor([[-torch.inf, 0.0, 0.0]]).expand(3, 3)
    assert _draw(logits, torch.tensor([0.0, 0.5, 1 - 2.0**-53], dtype=torch.float64)).tolist() == [1, 2, 2]


def test_batch_invariant_a_prompt_goes_on_alike_in_any_batch(pair):
    _, model = pair
    a, b = ids(5).tolist(), ids(9).tolist()
    with fastbert.batch_invariant():
        alone = model.generate([a], max_new_tokens=4, use_cache=False)
        assert model.generate([b, a], max_new_tokens=4, use_cache=False)[1:] == alone
        with pytest.raises(BackendError, match="expected use_cache=False"):
            model.generate([a], max_new_tokens=4)


def test_a_model_in_training_is_left_so_and_drops_nothing(pair, monkeypatch):
    _, model = pair
    monkeypatch.setattr(model.config, "embd_pdrop", 0.9)  # of which other tokens would come
    expected = model.generate(ids(2, 4), max_new_tokens=6)
    model.train()
    assert torch.equal(model.generate(ids(2, 4), max_new_tokens=6), expected)
    assert model.training
    model.transformer.h[0].eval()  # a part that is frozen
    model.generate(ids(2, 4), max_new_tokens=2)
    assert model.training
    assert not model.transformer.h[0].training
    model.eval()


@pytest.mark.parametrize(
    ("prompts", "options", "said"),
    [
        ([[]], {}, "empty"),
        ([], {}, "empty"),
        ([[3]], {"temperature": 0.0}, "temperature"),
        ([[3]], {"top_k": 0}, "top_k"),
        ([[3]], {"top_p": 1.5}, "top_p"),
        ([[3]], {"max_new_tokens": 25}, "24 positions, got 25"),
        ([[61]], {}, "below vocab_size 61"),
        ([[3]], {"seed": -1}, "seed"),
        ([3, 4], {}, "sequences of ids, one a prompt, got \\[3, 4\\]"),
        ("text", {}, "sequences of ids"),
        ([[3.0]], {}, "sequences of ids"),
        (torch.ones(1, 2), {}, "ids .* of torch.float32"),
        ([[3]], {"max_new_tokens": 2.5}, "max_new_tokens must be a whole number, at least 0, got 2.5"),
        ([[3]], {"top_k": 2.5}, "top_k must be a whole number, at least 1, got 2.5"),
        ([[3]], {"seed": "x"}, "seed must be a whole number"),
        ([[3]], {"temperature": None}, "temperature must be above 0, got None"),
        ([[3]], {"top_p": "x"}, "top_p"),
        ([[3]], {"top_p": 0.0}, "top_p"),
        ([[3]], {"eos_token_id": "x"}, "eos_token_id must be an id or a list of ids, got 'x'"),
        ([[3]], {"eos_token_id": True}, "eos_token_id must be an id or a list of ids, got True"),
        ([[3]], {"eos_token_id": 2.5}, "eos_token_id must be an id or a list of ids, got 2.5"),
        ([[3]], {"eos_token_id": [1, True]}, "eos_token_id must be an id or a list of ids, got .1, True."),
        ([[3]], {"eos_token_id": [1, 1 << 70]}, "eos_token_id must be an id or a list of ids"),
        ([[3]], {"pad_token_id": "x"}, "pad_token_id must be an id, got 'x'"),
        ([[3]], {"pad_token_id": 2.5}, "pad_token_id must be an id, got 2.5"),
        (torch.ones(1, 2, dtype=torch.int64), {"attention_mask": [[1, 1]]}, r"a tensor \(1, 2\), got list"),
    ],
)
def test_what_cannot_be_gone_on_with_is_named(prompts, options, said):
    model = GPTForPreTraining(transformers.OpenAIGPTConfig(**SIZES))
    with pytest.raises(InputError, match=said):
        model.generate(prompts, **options)
