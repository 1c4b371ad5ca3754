"""The encoder's layers as one op on the Triton kernels: right, and what its parts are, whoever trains what.

Like test_triton_kernels.py in Triton's interpreter, or on a GPU.
"""

from __future__ import annotations

import itertools
import os

import pytest
import torch

from fastbert import BertConfig, BertModel, PackedBatch, ops, rng
from fastbert.modules import encoder as encoder_module
from fastbert.ops import LayerParameters, _triton_encoder, _triton_linear
from fastbert.rng import Dropout, DropoutKey

pytest.importorskip("triton")
INTERPRETING = os.environ.get("TRITON_INTERPRET") == "1"
if not INTERPRETING and not torch.cuda.is_available():
    pytest.skip("needs TRITON_INTERPRET=1 or a GPU", allow_module_level=True)
DEVICE = "cpu" if INTERPRETING else "cuda"
LENGTHS = (5, 0, 12, 1)
BOUNDS = torch.tensor([0, *itertools.accumulate(LENGTHS)], dtype=torch.int32, device=DEVICE)
HIDDEN, WIDE, NHEADS = 32, 48, 2


@pytest.fixture(autouse=True)
def triton():
    torch.manual_seed(0)
    with ops.backend("triton"):
        yield


@pytest.fixture
def ran(monkeypatch):
    """How many layers were run in one op."""
    count, forward = [], _triton_encoder._forward
    monkeypatch.setattr(_triton_encoder, "_forward", lambda *a, **k: (count.append(1), forward(*a, **k))[1])
    return count


def parameters(count: int, dtype: torch.dtype) -> list[LayerParameters]:
    def random(*shape: int, around: float = 0.0) -> torch.Tensor:
        return (around + torch.randn(shape, dtype=torch.float64) / shape[-1] ** 0.5).to(DEVICE, dtype)

    square, vector = (HIDDEN, HIDDEN), (HIDDEN,)
    return [
        LayerParameters(
            *(2 * random(*square) for _ in "qkv"), *(random(*vector) for _ in "qkv"),
            *(random(*square), random(*vector), random(*vector, around=1.0), random(*vector)),
            *(random(WIDE, HIDDEN), random(WIDE), random(HIDDEN, WIDE), random(*vector)),
            *(random(*vector, around=1.0), random(*vector)),
        )
        for _ in range(count)
    ]  # fmt: skip


DROPOUTS = [tuple(Dropout(0.2, 3, 4, site + i) for i in range(3)) for site in (1, 5)]


@pytest.mark.parametrize(
    ("dropouts", "causal", "approximate"), [(DROPOUTS, False, "none"), (None, True, "tanh"), (None, False, "none")]
)
def test_states_and_all_gradients_are_the_references_in_float64(ran, dropouts, causal, approximate):
    layers, x = parameters(2, torch.float64), torch.randn(sum(LENGTHS), HIDDEN, dtype=torch.float64, device=DEVICE)
    dout = torch.randn(x.shape, dtype=torch.float64).to(DEVICE)

    def apart(tensor: torch.Tensor) -> torch.Tensor:
        return torch.stack([tensor, tensor.flip(0)], -1)[..., 0]

    def run(backend: str, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        given = [LayerParameters(*(t.to(dtype, copy=True).requires_grad_() for t in layer)) for layer in layers]
        leaf = apart(x.to(dtype)).requires_grad_()
        options = {"nheads": NHEADS, "eps": 1e-12, "approximate": approximate, "keep_states": True}
        with ops.backend(backend):
            states = ops.encoder(leaf, given, BOUNDS, max(LENGTHS), dropouts=dropouts, causal=causal, **options)
        states[1].backward(apart(dout.to(dtype)))
        found = {"first": states[0].detach(), "last": states[1].detach(), "x": leaf.grad}
        return found | {f"{i} {name}": getattr(p, name).grad for i, p in enumerate(given) for name in p._fields}

    truth, ours = run("reference", torch.float64), run("triton", torch.float32)
    assert len(ran) == 2
    for name, true in truth.items():
        scale = 1.0 if "key_bias" in name else float(true.abs().max())  # whose gradient is zero
        error = float((ours[name].double() - true).abs().max())
        assert error < 2e-5 * scale, f"{name} is off by {error:.2g} of {scale:.2g}"


def test_tokens_behind_the_last_sequence_change_no_gradient():
    """As a `RoomPacking` has them: nothing is summed over what was in the memory of their attention."""
    (layer,), tokens = parameters(1, torch.float32), sum(LENGTHS)
    x = torch.randn(tokens, HIDDEN, device=DEVICE)

    def run(behind: int) -> list[torch.Tensor]:
        given = [leaf.detach().requires_grad_() for leaf in (torch.cat([x, x.new_zeros(behind, HIDDEN)]), *layer)]
        options = {"nheads": NHEADS, "eps": 1e-12, "dropouts": DROPOUTS[:1]}
        (out,) = ops.encoder(given[0], [LayerParameters(*given[1:])], BOUNDS, max(LENGTHS), **options)
        out[:tokens].square().sum().backward()
        return [out.detach()[:tokens], given[0].grad[:tokens], *(leaf.grad for leaf in given[1:])]

    torch.use_deterministic_algorithms(True, warn_only=True)  # NaN in every new tensor
    try:
        found, expected = run(9), run(0)
    finally:
        torch.use_deterministic_algorithms(False)
    for name, one, other in zip(("out", "x", *LayerParameters._fields), found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5 * float(other.abs().max() + 0.1), msg=name)


def model(layers: int = 2) -> BertModel:
    torch.manual_seed(3)
    config = BertConfig(
        vocab_size=30, hidden_size=HIDDEN, num_hidden_layers=layers, num_attention_heads=NHEADS, intermediate_size=WIDE,
        max_position_embeddings=16,
    )  # fmt: skip
    return BertModel(config).to(DEVICE)


BATCH = PackedBatch.from_sequences([torch.arange(5, 10), torch.arange(6, 9)])


def train(bert: BertModel, monkeypatch, *, by_layers: bool, dtype=None) -> dict[str, torch.Tensor]:
    """The last states and every gradient of one pass."""
    with monkeypatch.context() as patch:
        if by_layers:
            patch.setattr(encoder_module, "run_stack", lambda *_, **__: None)
        bert.zero_grad()
        with rng.use(DropoutKey(5, 6)), torch.autocast(DEVICE, torch.bfloat16, enabled=dtype is not None):
            out = bert(BATCH.to(DEVICE)).last_hidden_state
        (out.float() * torch.linspace(-1, 1, HIDDEN, device=DEVICE)).sum().backward()
    return {"out": out.detach()} | {name: p.grad for name, p in bert.named_parameters() if p.grad is not None}


def test_a_model_trains_as_layer_by_layer(ran, monkeypatch):
    bert = model().train()
    apart = train(bert, monkeypatch, by_layers=True)
    assert not ran
    whole = train(bert, monkeypatch, by_layers=False)
    assert len(ran) == 2
    assert whole.keys() == apart.keys()
    for name, one in whole.items():
        torch.testing.assert_close(one, apart[name], rtol=0, atol=1e-5 * float(apart[name].abs().max() + 0.1), msg=name)


def test_under_autocast_it_is_as_near_to_float32_as_layer_by_layer(ran, monkeypatch):
    bert = model().train()
    exact = train(bert, monkeypatch, by_layers=True)
    apart = train(bert, monkeypatch, by_layers=True, dtype=torch.bfloat16)
    whole = train(bert, monkeypatch, by_layers=False, dtype=torch.bfloat16)
    assert len(ran) == 2
    for name, one in whole.items():
        assert one.dtype == apart[name].dtype, name
        error, usual = (float((x - exact[name]).float().norm()) for x in (one, apart[name]))
        assert error < 1.4 * usual + 1e-6, f"{name} is off by {error:.3g}, layer by layer by {usual:.3g}"


def test_gradients_that_nobody_asks_for_are_not_computed(monkeypatch):
    needed, plain = [], _triton_encoder._backward
    monkeypatch.setattr(_triton_encoder, "_backward", lambda *given: (needed.append(sum(given[-1])), plain(*given))[1])
    (layer,) = parameters(1, torch.float32)
    leaves = [torch.randn(sum(LENGTHS), HIDDEN, device=DEVICE), *layer]
    x, *given = (leaf.requires_grad_() for leaf in leaves)

    def loss_of(x: torch.Tensor, given: list[torch.Tensor]) -> torch.Tensor:
        states = ops.encoder(x, [LayerParameters(*given)], BOUNDS, max(LENGTHS), nheads=NHEADS, eps=1e-12)
        return states[-1].square().sum()

    loss = loss_of(x, given)
    loss.backward(retain_graph=True)
    for of in (x, given[0], given[-1]):
        torch.testing.assert_close(torch.autograd.grad(loss, of, retain_graph=True)[0], of.grad)
    frozen = [parameter.detach() for parameter in given]
    torch.testing.assert_close(torch.autograd.grad(loss_of(x, frozen), x)[0], x.grad)
    of_parameters = torch.autograd.grad(loss_of(x.detach(), given), given)
    torch.testing.assert_close(of_parameters, tuple(parameter.grad for parameter in given))
    assert needed == [len(leaves), 1, 1, 1, 1, len(given)]


def test_gradients_are_widened_in_one_launch_a_layer(monkeypatch):
    """None that has its parameter's dtype already is copied, nor one that a GPU's product stores in it."""
    launches, copy, widened = [], torch._foreach_copy_, _triton_encoder._widened

    def noted(to: list[torch.Tensor], given: list[torch.Tensor]) -> None:
        launches.append([*to, *given])
        copy(to, given)

    def of_gradients(*given):
        with monkeypatch.context() as patch:  # weights are copied by the same function
            patch.setattr(torch, "_foreach_copy_", noted)
            return widened(*given)

    monkeypatch.setattr(_triton_encoder, "_widened", of_gradients)
    train(model(), monkeypatch, by_layers=False, dtype=torch.bfloat16)
    kinds = [torch.float32] * 6 + [torch.bfloat16] * 6  # of the matrices; vectors' sums are in fp32
    copied = 0 if _triton_linear._STORES_SUMS and DEVICE == "cuda" else 2
    assert [[tensor.dtype for tensor in launch] for launch in launches] == [kinds] * copied
    train(model(), monkeypatch, by_layers=False)
    assert len(launches) == copied


def test_frozen_parameters_get_no_gradient(ran, monkeypatch):
    bert = model().train()
    bert.embeddings.requires_grad_(False)
    for name in (
        "attention.self.query.weight",
        "attention.self.query.bias",
        "output.dense.weight",
        "output.LayerNorm.bias",
    ):
        bert.get_parameter(f"encoder.layer.0.{name}").requires_grad_(False)
    bert.encoder.layer[1].intermediate.requires_grad_(False)
    whole, apart = (train(bert, monkeypatch, by_layers=by_layers) for by_layers in (False, True))
    assert len(ran) == 2
    assert whole.keys() == apart.keys()
    for name, one in whole.items():
        torch.testing.assert_close(one, apart[name], rtol=0, atol=1e-5, msg=name)


def test_states_that_are_shown_keep_their_gradients(ran, monkeypatch):
    """A caller's loss on an inner state, and its retained gradient, see the layers above it."""
    bert, found = model().train(), []
    for by_layers in (False, True):
        with monkeypatch.context() as patch:
            if by_layers:
                patch.setattr(encoder_module, "run_stack", lambda *_, **__: None)
            ids = torch.tensor([[5, 6, 7], [8, 9, 10]], device=DEVICE)
            with rng.use(DropoutKey(5, 6)):
                states = bert(ids, output_hidden_states=True).hidden_states
            states[1].retain_grad()
            (states[2].sum(-1) * states[1].sum(-1)).sum().backward()
            found.append(states[1].grad)
    assert len(ran) == 2
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-5)


def test_rows_of_the_last_layer_and_hooks_leave_what_they_must_to_the_modules(ran):
    bert = model(3).eval()
    with torch.no_grad():
        x = bert(BATCH.to(DEVICE)).last_hidden_state
        assert len(ran) == 3
        ran.clear()
        wanted = torch.tensor([3, 6], device=DEVICE)
        few = bert.encode(BATCH.to(DEVICE), only=wanted).hidden
        assert len(ran) == 2
        torch.testing.assert_close(few, x[wanted], rtol=1e-5, atol=1e-5)
        ran.clear()
        bert.encoder.layer[1].output.register_forward_hook(lambda *_: ran.append("hook"))
        torch.testing.assert_close(bert(BATCH.to(DEVICE)).last_hidden_state, x, rtol=1e-5, atol=1e-5)
        assert ran == ["hook"]


def test_many_tokens_without_a_gradient_have_one_projection(monkeypatch):
    bert, found = model(1).eval(), []
    with torch.no_grad():
        for most in (10**9, 0):
            monkeypatch.setattr(_triton_encoder, "JOIN_TOKENS", most)
            found.append(bert(BATCH.to(DEVICE)).last_hidden_state)
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-5)
