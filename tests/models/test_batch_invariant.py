"""`fastbert.batch_invariant`: a sequence's outputs have the same bits in every batch; else there is a refusal."""

from __future__ import annotations

import copy
import operator
import random

import hf_parity as hf
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tiny_bert import save
from torch import nn

import fastbert
from fastbert.errors import BackendError
from fastbert.interop.sentence_encoder import SentenceEncoder
from fastbert.ops._invariant import trusted

LENGTHS = (1, 2, 3, 5, 16, 17, 31, 64)
# Large enough that torch's products change their order between batches: see test_without_the_mode.
SIZES = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 512}


def model_of(name: str, dtype=torch.float32, **changes) -> nn.Module:
    torch.manual_seed(0)
    config = fastbert.BertConfig(vocab_size=3000, max_position_embeddings=128, **{**SIZES, **changes})
    return getattr(fastbert, name)(config).to(dtype).eval()


def sequences() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(0, 3000, (n,), generator=generator) for n in LENGTHS]


def batches(padding: str, count: int):
    """Random compositions: which sequences, in which order, among how many pads.

    Yields the members, (B, S) ids and mask. Padding "left" and "holes" move a sequence's tokens to other columns, so
    positions go with the tokens.
    """
    draw, rows = random.Random(7), sequences()
    for number in range(count):
        members = list(range(len(rows)))
        draw.shuffle(members)
        members = members[: draw.randint(1, len(rows))] if number else members
        width = max(len(rows[i]) for i in members) + draw.randint(0, 9)
        ids, mask, positions = (torch.zeros(len(members), width, dtype=torch.int64) for _ in range(3))
        for row, i in enumerate(members):
            n = len(rows[i])
            columns = {
                "right": list(range(n)),
                "left": list(range(width - n, width)),
                "holes": [0, *sorted(draw.sample(range(1, width), n - 1))],
            }[padding]
            ids[row, columns], mask[row, columns], positions[row, columns] = rows[i], 1, torch.arange(n)
        yield members, {"input_ids": ids, "attention_mask": mask, "position_ids": positions}


def differing(model, padding: str = "right", count: int = 4) -> int:
    """How many outputs of a sequence have other bits than in the first batch that held it."""
    first, wrong = {}, 0
    for members, given in batches(padding, count):
        out = model(**given)
        for row, i in enumerate(members):
            mask = given["attention_mask"]
            tensors = [x for x in out.values() if isinstance(x, torch.Tensor)]
            own = [x[row][mask[row].bool()] if x.shape[:2] == mask.shape else x[row] for x in tensors]
            wrong += sum(not torch.equal(x, y) for x, y in zip(own, first.setdefault(i, own), strict=True))
    return wrong


@pytest.fixture(params=[1, 2])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def invariant():
    with torch.no_grad(), fastbert.batch_invariant():
        yield


@pytest.mark.parametrize("padding", ["right", "left", "holes"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_hidden_states_whatever_the_padding(padding, dtype, threads, invariant):
    model = model_of("BertModel", dtype)
    if padding == "left":
        model.pooler = None  # with one, this padding is refused
    assert differing(model, padding) == 0


@pytest.mark.parametrize(
    "name", ["BertForMaskedLM", "BertForPreTraining", "BertForSequenceClassification", "BertForQuestionAnswering"]
)
def test_heads(name, invariant):
    assert differing(model_of(name)) == 0


def test_without_the_mode_the_bits_differ():
    # Or the tests above would pass of themselves. Which product of torch changes its order is the machine's affair.
    with torch.no_grad():
        found = differing(model_of("BertForMaskedLM"))
        with fastbert.backend("reference"):
            assert found + differing(model_of("BertModel")) > 0


def test_the_reference_backends_attention_keeps_its_options():
    q, k, v = (torch.randn(9, 2, 8, generator=torch.Generator().manual_seed(n)) for n in range(3))
    given = (q, k, v, torch.tensor([0, 4, 9], dtype=torch.int32), 5)
    with fastbert.backend("reference"):
        expected = fastbert.ops.attention(*given, softmax_scale=0.9, causal=True)
        with fastbert.batch_invariant():
            got = fastbert.ops.attention(*given, softmax_scale=0.9, causal=True)
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_on_the_reference_backend(dtype, threads, invariant):
    small = {"hidden_size": 48, "intermediate_size": 100, "num_hidden_layers": 1}
    with fastbert.backend("reference"):
        assert differing(model_of("BertForMaskedLM", dtype, **small), count=2) == 0


def test_int8_and_odd_sizes(invariant):
    assert differing(fastbert.quantize(model_of("BertForMaskedLM"))) == 0
    assert differing(model_of("BertForMaskedLM", hidden_size=52, intermediate_size=101)) == 0


def test_where_gradients_are_recorded():
    with fastbert.batch_invariant():
        assert differing(model_of("BertForMaskedLM")) == 0


def test_packed_batches(invariant):
    model, rows = model_of("BertModel"), sequences()
    alone = [model(fastbert.PackedBatch.from_sequences([row])) for row in rows]
    for order in (list(range(len(rows))), [7, 2, 5, 2]):
        out = model(fastbert.PackedBatch.from_sequences([rows[i] for i in order]))
        parts = out.last_hidden_state.split([len(rows[i]) for i in order])
        for place, i in enumerate(order):
            assert torch.equal(parts[place], alone[i].last_hidden_state)
            assert torch.equal(out.pooler_output[place], alone[i].pooler_output[0])


@pytest.mark.parametrize("name", ["BertModel", "BertForMaskedLM", "BertForSequenceClassification"])
def test_a_patched_model_with_its_head(name, invariant):
    theirs, _ = hf.pair(name, max_position_embeddings=128, vocab_size=3000, hidden_size=128, intermediate_size=512)
    assert differing(fastbert.patch(copy.deepcopy(theirs).eval())) == 0
    with pytest.raises(BackendError, match="expected a model of fastbert's, or a patched one"):
        differing(theirs.eval())


def test_results_and_gradients_are_those_without_it():
    # The reference in float64 is the truth of both; the rule is that of tests/close.py's callers in hf_parity.
    theirs, ours = hf.pair("BertForMaskedLM")
    given = {**hf.inputs(), "attention_mask": hf.masks()["prefix"], "labels": hf.inputs(7)["input_ids"]}
    given["labels"] = given["labels"].masked_fill(given["attention_mask"] == 0, -100)
    expected = theirs(**given).loss
    expected.backward()
    with fastbert.batch_invariant():
        got = ours(**given).loss
        got.backward()
    hf.assert_near(got, expected, torch.float32, "loss")
    hf.assert_same_gradients(ours, theirs, torch.float32)


def test_sentence_vectors(tmp_path, threads, monkeypatch):
    save(tmp_path, "BertModel", **SIZES)
    encoder = SentenceEncoder.from_pretrained(tmp_path, device="cpu")  # where it can be had
    modes, vectors = [], encoder._vectors

    def noted(*args):
        modes.append(fastbert.ops.is_batch_invariant())
        return vectors(*args)

    monkeypatch.setattr(encoder, "_vectors", noted)
    texts = ["a", "the quick brown fox", "a b c d e f g h", "fox", "", "the the the the"] * 3
    with pytest.raises(TypeError):
        encoder.encode(texts, False)
    alone = np.concatenate([encoder.encode([text], batch_invariant=True) for text in texts])
    for budget in (1, 7, 4096):
        assert np.array_equal(encoder.encode(texts, batch_invariant=True, token_budget=budget), alone)
    order = [5, 0, 3, 1]
    assert np.array_equal(encoder.encode([texts[i] for i in order], batch_invariant=True), alone[order])
    assert modes
    assert all(modes)
    modes.clear()
    encoder.encode(texts)
    assert modes
    assert not any(modes)


def _refused(do, *words: str) -> None:
    with fastbert.batch_invariant(), pytest.raises(BackendError) as refused:
        do()
    text = str(refused.value)
    assert text.startswith("batch_invariant cannot hold: ")
    assert "\n" not in text
    for word in words:
        assert word in text


def test_what_cannot_hold_is_refused_in_one_sentence():
    model = model_of("BertModel")
    ids = torch.zeros(2, 4, dtype=torch.int64)
    left = torch.tensor([[1, 1, 1, 1], [0, 1, 1, 1]])
    _refused(lambda: model(ids, attention_mask=left), "left padding")
    _refused(lambda: model(ids, output_attentions=True), "attention probabilities")
    causal = torch.ones(4, 4).tril().bool()[None, None].expand(2, 1, -1, -1)
    _refused(lambda: model(ids, attention_mask=causal), "4-D attention mask")
    under_vmap = torch.func.vmap(lambda ids: model(ids).last_hidden_state)
    _refused(lambda: under_vmap(ids[:, None]), "torch.func and forward-mode differentiation take the padded path")
    x = torch.randn(1, 2, 3, 4)
    _refused(lambda: F.scaled_dot_product_attention(x, x, x), "scaled_dot_product_attention was called")
    _refused(lambda: x @ x.transpose(-1, -2), "matmul was called")
    _refused(lambda: torch.nn.LSTM(4, 4)(x[0]), "lstm was called")
    _refused(lambda: torch.nn.Conv1d(3, 2, 1)(x[0]), "conv1d was called")
    theirs, _ = hf.pair("BertModel")
    if hasattr(torch.ao.quantization, "quantize_dynamic"):  # torch is about to take it out
        by_torch = torch.ao.quantization.quantize_dynamic(fastbert.patch(copy.deepcopy(theirs)), {torch.nn.Linear})
        _refused(lambda: by_torch(**hf.inputs()), "the largest number of the whole batch", "linear_dynamic")
    given = {"input_ids": hf.inputs()["input_ids"], "attention_mask": hf.masks()["left"]}
    _refused(lambda: fastbert.patch(theirs)(**given), "left padding")
    _refused(lambda: fastbert.patch(theirs, pads="computed")(**given), 'pads="zeros"')
    theirs.encoder.layer[0].attention.self.register_forward_hook(lambda *_: None)
    _refused(lambda: theirs(**hf.inputs()), "transformers' own code")
    _refused(lambda: F.linear(torch.empty(2, 3, device="meta"), torch.empty(4, 3, device="meta")), "on meta")


# Without a mask torch's compiler begins anew after every call, which takes it half a minute.
@pytest.mark.parametrize("masked", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_compiled_model_runs_as_one_that_is_not(masked):
    torch.compiler.reset()
    model, ids = (
        model_of("BertModel", num_hidden_layers=1),
        torch.randint(3000, (5, 17), generator=torch.Generator().manual_seed(3)),
    )
    compiled = torch.compile(model, backend="eager")

    def states(of, rows: torch.Tensor) -> torch.Tensor:
        mask = {"attention_mask": torch.ones_like(rows)} if masked else {}
        return of(rows, **mask).last_hidden_state

    with torch.no_grad(), fastbert.batch_invariant():
        together = states(compiled, ids)
        assert torch.equal(together, torch.cat([states(compiled, row) for row in ids.split(1)]))
        assert torch.equal(together, states(model, ids))


@pytest.mark.parametrize("records", [False, True])
def test_a_compiled_model_with_a_head_runs_as_one_that_is_not(records):
    torch.compiler.reset()
    model, ids = model_of("BertForSequenceClassification", num_hidden_layers=1), sequences()
    rows = torch.stack([torch.cat([row, row.new_zeros(64 - len(row))]) for row in ids])
    mask = torch.stack([torch.arange(64) < len(row) for row in ids]).long()
    compiled = torch.compile(model, backend="eager")
    with torch.set_grad_enabled(records), fastbert.batch_invariant():
        together = compiled(rows, attention_mask=mask).logits
        assert together.requires_grad == records
        alone = [compiled(row[None], attention_mask=one[None]).logits for row, one in zip(rows, mask, strict=True)]
        assert torch.equal(together, torch.cat(alone))
        assert torch.equal(together, model(rows, attention_mask=mask).logits)


@pytest.mark.parametrize("records", [False, True])
@pytest.mark.parametrize(("rows", "sizes"), [(33, (128, 7)), (500, (256, 256))])  # the second torch would compute
def test_a_compiled_function_runs_as_one_that_is_not(rows, sizes, records):
    torch.compiler.reset()
    torch.manual_seed(0)
    layer, x = nn.Linear(*sizes), torch.randn(rows, sizes[0])
    function = torch.compile(lambda x: (layer(x).tanh() * 2).softmax(-1), backend="eager")
    with torch.set_grad_enabled(records), fastbert.batch_invariant():
        assert torch.equal(function(x), torch.cat([function(part) for part in x.split(rows // 8)]))
        with pytest.raises(BackendError, match="matmul was called"):
            torch.compile(lambda x: x @ x.t(), backend="eager")(x)


def test_the_mode_ends_with_the_block():
    x = torch.randn(3, 3)
    with pytest.raises(BackendError), fastbert.batch_invariant(), fastbert.batch_invariant():
        x @ x
    assert (x @ x).shape == (3, 3)
    assert not fastbert.ops.is_batch_invariant()


# What users put on a head's (B,) scores and on those of tokens, (B, S).
SCORES = {
    "sigmoid": torch.sigmoid,
    "gelu": F.gelu,
    "softplus": F.softplus,
    "by name": lambda x: torch.sigmoid(input=x),
    "rsqrt": lambda x: (x.bfloat16() + 4).rsqrt(),  # torch's depends on the place in bfloat16 alone
    "sinh": torch.sinh,
    "cosh": torch.Tensor.cosh,
    "atanh": lambda x: (x / 4).atanh(),
    "celu": F.celu,
    "selu": torch.selu,
    "a power": lambda x: 2 ** (5.1 * x),
    "a power by torch": lambda x: torch.pow(2.3, x),
    "a power in place": lambda x: operator.ipow(x.abs(), 1.3),
    "pow_": lambda x: x.abs().pow_(1.3),
    "float_power": lambda x: x.abs().float_power(2.3),
    "float_power of a number": lambda x: torch.float_power(1.3, x),
    "expit": torch.special.expit,
    "exp2": torch.special.exp2,
    "exp2_": lambda x: x.clone().exp2_(),
    "arctanh": lambda x: (x / 4).arctanh(),
    "arctanh_": lambda x: (x / 4).arctanh_(),
    "elu in place": lambda x: F.elu_(x.clone()),
    "celu in place": lambda x: F.celu_(x.clone()),
}
OVER_TOKENS = {
    "sum": lambda x: x.relu().sum(-1, keepdim=True),
    "axis": lambda x: x.relu().sum(axis=1, keepdims=True),
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: F.log_softmax(x, dim=1),
}


@pytest.mark.parametrize("name", SCORES)
def test_scores_know_no_neighbours(name):
    x = torch.linspace(-3, 3, 97)
    with fastbert.batch_invariant():
        alone = torch.cat([SCORES[name](x[i : i + 1]) for i in range(97)])
        for start, end in ((0, 97), (0, 8), (1, 40), (13, 96)):
            torch.testing.assert_close(SCORES[name](x[start:end]), alone[start:end], rtol=0, atol=0)
            torch.testing.assert_close(SCORES[name](x[None, start:end])[0], alone[start:end], rtol=0, atol=0)
    torch.testing.assert_close(alone, SCORES[name](x))


@pytest.mark.parametrize("tokens", [9, 30])  # torch's softmax shows it with the one, its sums with the other
@pytest.mark.parametrize("name", OVER_TOKENS)
def test_sums_of_scores_do_not_see_masked_tokens_behind_them(name, tokens):
    x = 4 * torch.randn(40, tokens, generator=torch.Generator().manual_seed(0))
    x.requires_grad_()
    with fastbert.batch_invariant():
        found = [OVER_TOKENS[name](F.pad(x, (0, pads), value=-1e9))[:, :tokens] for pads in (0, 1, 7, 35)]
        for got in found:
            torch.testing.assert_close(got, found[0], rtol=0, atol=0)
        torch.testing.assert_close(OVER_TOKENS[name](x[3:4]), found[0][3:4], rtol=0, atol=0)
    expected = OVER_TOKENS[name](x)
    torch.testing.assert_close(found[0], expected)
    slopes = [torch.autograd.grad(y.sin().sum(), x)[0] for y in (found[0], expected)]
    torch.testing.assert_close(*slopes)


SUMS = {
    "sum": lambda x: x.sum(1),
    "named": lambda x: x.sum(axis=1),
    "kept": lambda x: torch.sum(x, dim=[-2], keepdim=True),
    "wide": lambda x: x.sum(1, dtype=torch.float64),
}


@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sums_over_tokens_do_not_see_zeros_behind_them(name, dtype):
    # torch sums four tokens side by side where columns do not fill its vectors; of 30 or 31 the last join elsewhere.
    x = torch.randn(3, 30, 40, generator=torch.Generator().manual_seed(0)).to(dtype)
    expected = SUMS[name](x.double()).to(torch.float64)
    with fastbert.batch_invariant():
        sums = [SUMS[name](F.pad(x, (0, 0, 0, pads))) for pads in (0, 1, 7, 35)]
    for got in sums:
        assert got.dtype == SUMS[name](x).dtype
        torch.testing.assert_close(got, sums[0], rtol=0, atol=0)
        torch.testing.assert_close(got.double(), expected, rtol=1e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-5)


def test_means_over_tokens_and_other_sums_are_torchs():
    x = torch.randn(3, 5, 7)
    with fastbert.batch_invariant():
        for function in (torch.sum, torch.mean):
            for dim in (None, 0, 1, -1, (0, 1), [1]):
                got = function(x) if dim is None else function(x, dim)
                with trusted():
                    expected = function(x) if dim is None else function(x, dim)
                torch.testing.assert_close(got, expected)


@pytest.mark.parametrize(
    "function", [torch.sigmoid_, torch.Tensor.tanh_, torch.selu_, lambda x: F.silu(x, inplace=True)]
)
def test_functions_in_place_change_what_they_are_given(function):
    x, expected = torch.linspace(-2, 2, 33)[None], torch.linspace(-2, 2, 33)[None]
    function(expected)
    with fastbert.batch_invariant():
        got = function(x)
    assert got is x
    torch.testing.assert_close(x, expected)
