"""A whole encoder's one call that is recorded by autograd, and the gradient that is computed when it is asked for."""

from __future__ import annotations

import copy
import threading
from collections.abc import Sequence

import pytest
import torch
from close import assert_close
from levels import LEVELS
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import fastbert
from fastbert import BertConfig, BertEncoder, _native, fp8, ops, reference
from fastbert.errors import BackendError, InputError
from fastbert.modules import stack
from fastbert.modules.fp8 import policy
from fastbert.modules.layout import PackedLayout
from fastbert.ops import _cpu_encoder_gradient

pytestmark = [
    pytest.mark.skipif(_native.why_missing() is not None, reason=str(_native.why_missing())),
    # As torch 2.6 cannot; there every pass that is recorded is computed op by op.
    pytest.mark.skipif(
        bool(_cpu_encoder_gradient._saving_hooks(True)), reason="this torch cannot say who sees what is saved"
    ),
]

OPTIONS = {"nheads": 3, "eps": 1e-3, "approximate": "none"}
CU_SEQLENS = torch.tensor([0, 11, 11, 12, 40], dtype=torch.int32)


@pytest.fixture(autouse=True)
def by_name():
    """Else the layers serve one by one at the level "scalar"."""
    with fastbert.backend("cpu"):
        yield


def new_encoder(dtype=torch.float32, **changes) -> BertEncoder:
    torch.manual_seed(5)
    sizes = {"hidden_size": 96, "num_attention_heads": 3, "intermediate_size": 200, "num_hidden_layers": 3}
    encoder = BertEncoder(BertConfig(**sizes, layer_norm_eps=OPTIONS["eps"], vocab_size=40, **changes))
    for p in encoder.parameters():
        nn.init.normal_(p, 1.0 if p.dim() == 1 else 0.0, 0.1)
    return encoder.to(dtype).eval()


def given(dtype=torch.float32, requires_grad: bool = True) -> Tensor:
    generator = torch.Generator().manual_seed(6)
    return torch.randn(40, 96, generator=generator).to(dtype).requires_grad_(requires_grad)


def run(encoder: BertEncoder, x: Tensor, **options) -> Tensor:
    return encoder(x, cu_seqlens=CU_SEQLENS, max_seqlen=28, **options).last_hidden_state


def loss(y: Tensor) -> Tensor:
    return (3 * y.float()).sin().sum()


def layers_of(encoder: BertEncoder, dtype: torch.dtype) -> tuple[ops.LayerParameters, ...]:
    modules = list(encoder.layer)
    layers = stack._plain_parameters(modules, stack._Stack(), stack._kind(modules, encoder.config))
    return tuple(
        ops.LayerParameters(*(t.detach().to(dtype).requires_grad_(t.requires_grad) for t in layer)) for layer in layers
    )


def gradients_of(run_layers, encoder: BertEncoder, dtype: torch.dtype, upstream: Tensor) -> list[Tensor]:
    """Those of x and of all parameters that want one, of the layers in this dtype."""
    layers, x = layers_of(encoder, dtype), given().to(dtype).detach().requires_grad_()
    y = run_layers(x, layers, CU_SEQLENS, 28, **OPTIONS)[-1]
    inputs = [x, *(t for layer in layers for t in layer if t.requires_grad)]
    return torch.autograd.grad(y, inputs, upstream.to(dtype))


def assert_same(got: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    """Gradients of parameters but for rounding, also of the keys' biases, whose true ones are 0."""
    largest = max(float(gradient.abs().max()) for gradient in expected)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=max(1e-4 * float(b.abs().max()), 1e-6 * largest))


@pytest.mark.parametrize("trained", ["all", "one layer"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_gradient_is_right(dtype, trained):
    encoder = new_encoder(dtype)
    if trained == "one layer":
        encoder.requires_grad_(False).layer[1].requires_grad_()
    # Of eight at once: through three layers one's rounding, by either way, is now half and now twice the other's.
    generator = torch.Generator().manual_seed(7)
    upstreams = [torch.randn(40, 96, generator=generator) for _ in range(8)]

    def gradients(run_layers, dtype: torch.dtype) -> list[Tensor]:
        found = [gradients_of(run_layers, encoder, dtype, upstream) for upstream in upstreams]
        return [torch.stack(of_one) for of_one in zip(*found, strict=True)]

    got = gradients(ops.encoder, dtype)
    same, truth = (gradients(reference.encoder, d) for d in (dtype, torch.float64))
    assert len(got) == (1 + 48 if trained == "all" else 1 + 16)
    names = ["x", *ops.LayerParameters._fields * 3]
    for name, *of_name in zip(names, got, truth, same, strict=False):
        if name == "key_bias":  # which changes all scores of a query alike: what there is, is the tokens' rounding
            assert of_name[1].abs().max() < 1e-10
            assert of_name[0].abs().max() < got[0].shape[1] * torch.finfo(dtype).eps * got[0].abs().max()
        else:
            assert_close(*of_name, gradient=True, what=name)


def test_recorded_or_not_it_is_the_one_call_until_a_backward_pass_comes(calls):
    encoder, x = new_encoder(), given()
    with torch.no_grad():
        expected = run(encoder, x)
    first, second = run(encoder, x), run(encoder, x)
    assert torch.equal(first, expected)
    assert torch.equal(second, expected)
    assert len(calls) == 3
    loss(second).backward()
    by_layers = run(encoder, x)
    assert len(calls) == 3
    torch.testing.assert_close(by_layers, expected)
    kept = [p.grad.clone() for p in encoder.parameters()]
    encoder.zero_grad()
    loss(by_layers).backward()
    assert_same([p.grad for p in encoder.parameters()], kept)
    with torch.no_grad():
        assert torch.equal(run(encoder, x), expected)
    assert len(calls) == 4
    run(copy.deepcopy(encoder), x)  # through which no backward pass has come
    assert len(calls) == 5


WATCHED = {
    "deterministic": lambda run: _deterministic(run),
    "a mode around batch-invariant mode": lambda run: _within(
        torch.device("cpu"), lambda: _within(fastbert.batch_invariant(), run)
    ),
    "saved tensors are looked at": lambda run: _within(
        torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t), run
    ),
    "a mode": lambda run: _within(torch.device("cpu"), run),
    "8 bits": lambda run: _within(fp8.use(policy(_some_model())), run),
}


def _some_model() -> fastbert.BertModel:
    """Of whose dense layers there is a policy for products in 8 bits."""
    sizes = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64, "num_hidden_layers": 1}
    return fastbert.BertModel(BertConfig(**sizes, vocab_size=40))


def _within(block, run) -> Tensor:
    with block:
        return run()


def _deterministic(run) -> Tensor:
    torch.use_deterministic_algorithms(True)
    try:
        return run()
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("why", WATCHED)
def test_where_somebody_counts_on_what_is_recorded_the_layers_are_called_one_by_one(why, calls):
    encoder, x = new_encoder(), given()
    with fastbert.backend("auto"):
        y = WATCHED[why](lambda: run(encoder, x))
    assert calls == []
    assert y.requires_grad


@pytest.fixture(params=LEVELS)
def level(request):
    # Not `at_level`: under torch's deterministic algorithms, which fill new tensors, the layers serve one by one.
    before = _native.isa()
    _native.extension().set_isa(request.param)
    yield request.param
    _native.extension().set_isa(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_in_batch_invariant_mode_the_bits_stay_when_a_backward_pass_has_come(dtype, level, calls):
    """In float32 that is true of the one call; in other dtypes what is computed layer by layer has other bits."""
    encoder, x = new_encoder(dtype), given(dtype)
    with fastbert.backend("auto"), fastbert.batch_invariant():
        before = run(encoder, x)
        assert calls == ([1] if dtype == torch.float32 and level != "scalar" else [])
        loss(before).backward()
        after = run(encoder, x)
    assert len(calls) <= 1
    assert torch.equal(before, after)


def test_in_batch_invariant_mode_the_dtype_is_that_of_autocast(calls):
    encoder, x = new_encoder(), given()
    with fastbert.backend("auto"), fastbert.batch_invariant(), torch.autocast("cpu", torch.bfloat16):
        before = run(encoder, x)
        assert calls == []
        loss(before).backward()
        assert torch.equal(before, run(encoder, x))


@pytest.mark.parametrize("form", ["packed", "padded", "autocast"])
def test_states_that_are_all_kept_have_gradients_by_each_other(form, calls):
    """As transformers' have: who asks what a state does to the last one gets that."""
    generator = torch.Generator().manual_seed(6)
    x, mask = torch.randn(3, 9, 96, generator=generator, requires_grad=True), torch.ones(3, 9, dtype=torch.int64)
    mask[1, 5:] = 0
    arguments = (x, mask) if form != "packed" else (given(),)
    bounds = {} if form != "packed" else {"cu_seqlens": CU_SEQLENS, "max_seqlen": 28}

    def slopes(encoder: BertEncoder) -> tuple[list[Tensor], list[Tensor]]:
        with torch.autocast("cpu", torch.bfloat16, enabled=form == "autocast"):
            out = encoder(*arguments, **bounds, output_hidden_states=True)
        assert torch.equal(out.hidden_states[-1], out.last_hidden_state)
        parameters = encoder.layer[2].output.dense.weight, encoder.layer[0].intermediate.dense.bias
        asked = [*out.hidden_states[:-1], *parameters]
        of_last = torch.autograd.grad(loss(out.last_hidden_state), asked, retain_graph=True)
        of_middle = torch.autograd.grad(loss(out.hidden_states[2]), asked, allow_unused=True)
        assert [gradient is None for gradient in of_middle] == [False, False, False, True, False]
        return list(out.hidden_states), [g for g in (*of_last, *of_middle) if g is not None]

    states, got = slopes(new_encoder())
    assert calls == [1]
    with fastbert.backend("reference"):
        expected_states, expected = slopes(new_encoder())
    assert calls == [1]
    close = {"rtol": 0.05, "atol": 0.05} if form == "autocast" else {}
    for a, b in zip(states, expected_states, strict=True):
        torch.testing.assert_close(a, b, **close)
    for a, b in zip(got, expected, strict=True):
        assert a.dtype == b.dtype
        error = float((a - b).square().mean().sqrt() / b.square().mean().sqrt())
        assert error < (0.05 if form == "autocast" else 1e-4)


def test_the_op_by_name_keeps_all_states():
    layers = layers_of(new_encoder(), torch.float32)
    states = ops.encoder(given(), layers, CU_SEQLENS, 28, **OPTIONS, keep_states=True)
    assert len(states) == 3
    (got,) = torch.autograd.grad(loss(states[-1]), states[0])
    with fastbert.backend("reference"):
        states = ops.encoder(given(), layers, CU_SEQLENS, 28, **OPTIONS, keep_states=True)
    (expected,) = torch.autograd.grad(loss(states[-1]), states[0])
    torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()))


def test_once_a_backward_pass_has_come_nothing_is_computed_twice(calls):
    """Also where the embeddings are frozen, and what is trained are the layers."""
    encoder, x = new_encoder(), given(requires_grad=False)
    loss(run(encoder, x)).backward()
    loss(run(encoder, x)).backward()
    assert calls == [1]
    encoder.requires_grad_(False)
    assert not run(encoder, x).requires_grad
    assert calls == [1, 1]


def torchs_encoder() -> nn.TransformerEncoder:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0, activation="gelu", batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def test_training_is_recorded_layer_by_layer_from_the_first_step(calls):
    """Also where nothing is dropped: a run that is resumed computes its first step as one that was not interrupted."""
    encoder, x = new_encoder(), given()
    fastbert.patch(torchs := torchs_encoder())
    layout = PackedLayout(CU_SEQLENS, 28, False)
    for mode, expected in ((True, []), (False, [1, 1])):
        for module in (encoder, torchs):
            module.train(mode)
        assert encoder.run(x, layout, None)[0].requires_grad
        assert torchs(torch.ones(1, 3, 32)).requires_grad
        assert calls == expected
    # What is frozen is not recorded.
    for module in (encoder, torchs):
        module.train().requires_grad_(False)
    assert not encoder.run(x.detach(), layout, None)[0].requires_grad
    assert not torchs(torch.ones(1, 3, 32)).requires_grad
    assert calls == [1] * 4


def test_torchs_encoder_that_is_patched(calls):
    plain = torchs_encoder().eval()
    ours, x = fastbert.patch(copy.deepcopy(plain)), torch.randn(2, 7, 32)
    for number in range(2):
        got, expected = ours(x), plain(x)
        torch.testing.assert_close(got, expected)
        loss(got).backward()
        loss(expected).backward()
        assert_same([p.grad for p in ours.parameters()], [p.grad for p in plain.parameters()])
        assert calls == [1], number


def test_gradients_that_nobody_asks_for_are_not_computed(monkeypatch):
    """As those of the weights where a saliency map asks for the embeddings'."""
    encoder, x = new_encoder(), given()
    y, asked, true = run(encoder, x), [], _cpu_encoder_gradient._op_by_op

    def noted(x, layers, *rest):
        asked.append([x.requires_grad, *(t.requires_grad for layer in layers for t in layer)])
        return true(x, layers, *rest)

    monkeypatch.setattr(_cpu_encoder_gradient, "_op_by_op", noted)
    bias = encoder.layer[1].output.dense.bias
    for inputs, number in ((x, 1), (bias, 1), ((x, bias), 2)):
        torch.autograd.grad(loss(y), inputs, retain_graph=True)
        assert sum(asked.pop()) == number
    loss(y).backward()
    assert all(asked.pop())


def test_a_parameters_hook_sees_its_gradient_once():
    encoder, seen = new_encoder(), []
    expected, bias = (
        torch.autograd.grad(loss(run(new_encoder(), x := given())), x)[0],
        encoder.layer[1].output.dense.bias,
    )
    bias.register_hook(lambda grad: seen.append(grad) or 2 * grad)
    y = run(encoder, x)
    plain = torch.autograd.grad(loss(run(new_encoder(), x)), x)[0]
    assert torch.equal(plain, expected)
    loss(y).backward()
    assert len(seen) == 1
    torch.testing.assert_close(bias.grad, 2 * seen[0])
    torch.testing.assert_close(x.grad, expected)


def test_a_parameter_that_was_written_to_is_told():
    encoder = new_encoder()
    y = run(encoder, given())
    with torch.no_grad():
        encoder.layer[2].output.dense.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss(y).backward()


@pytest.mark.parametrize("name", ["output.dense.weight", "intermediate.dense.bias", "output.LayerNorm.bias"])
def test_the_gradient_is_of_the_memory_that_was_there(calls, name):
    """``parameter.data = other`` gives a parameter other memory, and counts no version: snapshots of which each is
    called, and their sum differentiated."""
    encoder, x = new_encoder(), given()
    p = encoder.layer[1].get_parameter(name)
    snapshots, total, expected = [p.detach().clone(), 3 * p.detach()], 0, 0
    for snapshot in snapshots:
        p.data = snapshot
        total = total + loss(run(encoder, x))
        with fastbert.backend("reference"):
            expected = expected + torch.autograd.grad(loss(run(encoder, x)), x)[0]
    assert calls == [1, 1]
    again = run(encoder, x)
    p.data = snapshots[0]
    (got,) = torch.autograd.grad(total, x)
    assert_same([got], [expected])
    (first,) = torch.autograd.grad(loss(again), x, create_graph=True)
    with pytest.raises(BackendError, match="a second derivative needs the weights of the forward pass"):
        first.square().sum().backward()


def test_the_gradient_is_of_the_parameters_that_were_there(calls):
    """As torch.func.functional_call lends others for a call."""
    encoder, x = new_encoder(), given()
    lent = {name: (1.1 * p.detach()).requires_grad_() for name, p in encoder.named_parameters()}
    arguments = (x,), {"cu_seqlens": CU_SEQLENS, "max_seqlen": 28}
    y = torch.func.functional_call(encoder, lent, *arguments).last_hidden_state
    assert calls == [1]
    got = torch.autograd.grad(loss(y), list(lent.values()))
    with fastbert.backend("reference"):
        y = torch.func.functional_call(encoder, lent, *arguments).last_hidden_state
        expected = torch.autograd.grad(loss(y), list(lent.values()))
    assert_same(got, expected)


def test_what_comes_back_can_be_written_to():
    encoder, x = new_encoder(), given()
    y = run(encoder, x)
    with fastbert.backend("reference"):
        loss(run(encoder, x).mul(2)).backward()
    expected, x.grad = x.grad, None
    loss(y.mul_(2)).backward()
    torch.testing.assert_close(x.grad, expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()))


def test_a_graph_that_is_kept_is_gone_through_twice():
    x = given()
    y = run(new_encoder(), x)
    first, second = (torch.autograd.grad(loss(y), x, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)
    torch.autograd.grad(loss(y), x)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(loss(y), x)


@pytest.mark.parametrize("keep", [False, True])
def test_a_backward_pass_within_inference_mode(keep):
    """Where nothing is recorded, and tensors that come from there cannot be saved."""
    x, encoder = given(), new_encoder()

    def total() -> Tensor:
        out = encoder(x[None], output_hidden_states=keep)
        return sum(map(loss, out.hidden_states)) if keep else loss(out.last_hidden_state)

    with fastbert.backend("reference"):
        (expected,) = torch.autograd.grad(total(), x)
    recorded = total()
    with torch.inference_mode():
        recorded.backward()
    torch.testing.assert_close(x.grad.clone(), expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()))


def test_the_gradient_is_computed_as_the_pass_was(monkeypatch):
    """By the backend, and under the autocast, of the pass; also on another thread, which has chosen neither."""
    x, encoder = given(), new_encoder()
    with torch.autocast("cpu", torch.bfloat16):
        y = run(encoder, x)
        expected = torch.autograd.grad(loss(run(new_encoder(), x)), x)[0]
    assert y.grad_fn.name().startswith("ToCopy")  # widened, as transformers' is
    used, true = [], ops._dispatch.current_backend
    monkeypatch.setattr(ops._dispatch, "current_backend", lambda: used.append(true()) or used[-1])
    thread = threading.Thread(target=lambda: loss(y).backward())
    thread.start()
    thread.join()
    assert set(used) == {"cpu"}
    assert torch.equal(x.grad, expected)


def test_two_passes_in_one_graph_under_checkpointing():
    """What is computed again must save what it saved before, though a backward pass has come between the two."""
    encoder, x = new_encoder(), given()
    first = checkpoint(lambda x: run(encoder, x), x, use_reentrant=False)
    second = checkpoint(lambda x: run(encoder, 2 * x), x, use_reentrant=False)
    (got,) = torch.autograd.grad(loss(first) + loss(second), x)
    with fastbert.backend("reference"):
        (expected,) = torch.autograd.grad(loss(run(encoder, x)) + loss(run(encoder, 2 * x)), x)
    torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()))


def test_many_gradients_at_once():
    """As torch.autograd.functional asks with vectorize=True."""
    encoder, x = new_encoder(), given()
    y = run(encoder, x)
    upstream = torch.randn(2, *y.shape, generator=torch.Generator().manual_seed(8))
    (got,) = torch.autograd.grad(y, x, upstream, retain_graph=True, is_grads_batched=True)
    each = [torch.autograd.grad(y, x, one, retain_graph=True)[0] for one in upstream]
    torch.testing.assert_close(got, torch.stack(each), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("total", [torch.sum, loss], ids=["linear", "not linear"])
def test_second_derivatives(total):
    """Of the first pass that a stack sees, and of a later one, which is recorded op by op."""
    encoder, x = new_encoder(), given()

    def penalty() -> torch.Tensor:
        (slope,) = torch.autograd.grad(total(run(encoder, x)), x, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), x)[0]

    first, later = penalty(), penalty()
    with fastbert.backend("reference"):
        expected = penalty()
    for got in (first, later):
        torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()))


def test_int8_weights_have_none():
    with pytest.raises((InputError, BackendError), match="int8 weights have no gradient"):
        run(fastbert.quantize(new_encoder()), given())
