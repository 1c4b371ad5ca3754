"""The CPU ops as torch ops: opcheck, torch.compile, and what is composed of them."""

from __future__ import annotations

import sys
from contextlib import nullcontext

import pytest
import torch
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from fastbert import _native, ops, reference
from fastbert.ops import _cpu_linear, _define, _watchers
from fastbert.rng import Dropout

pytestmark = pytest.mark.skipif(_native.why_missing() is not None, reason=str(_native.why_missing()))

DROPOUT = Dropout(p=0.2, seed=11, offset=4, site=2)
BITS = (13107, 11, 4, 2, None)  # threshold, seed, offset, site
LATER = (13107, 0, 0, 2, torch.tensor([11, 4]))  # the same, of a compiler that knows neither seed nor offset


def _leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


def _samples():
    x, w = _leaf(6, 20), _leaf(20)
    labels = torch.arange(6)
    yield "gelu", (x, w, False)
    yield "gelu", (x, None, True)
    yield "dropout", (x, *BITS, None)
    yield "dropout", (x, *LATER, torch.arange(6))
    yield "keep_mask", (torch.arange(6), 20, *BITS)
    yield "layer_norm", (x, w, _leaf(20), 1e-5, None, None, 0, 0, 0, 0, None, None, True)
    yield "layer_norm", (x, w, _leaf(20), 1e-5, _leaf(20), _leaf(6, 20), *BITS, torch.arange(6).flip(0), True)
    yield "layer_norm", (x, w, _leaf(20), 1e-5, _leaf(20), _leaf(6, 20), *LATER, None, True)
    yield "cross_entropy", (x, labels, -100)


@pytest.mark.parametrize(("name", "arguments"), list(_samples()))
def test_opcheck(name, arguments):
    results = torch.library.opcheck(getattr(torch.ops.fastbert, name), arguments)
    assert set(results.values()) == {"SUCCESS"}


def _block(x, bias, weight, residual):
    hidden = ops.gelu(ops.linear(x, weight), bias)
    hidden = ops.layer_norm(hidden, bias, bias, 1e-5, x_bias=bias, residual=residual, dropout=DROPOUT)
    return ops.cross_entropy(ops.dropout(hidden, DROPOUT), torch.arange(x.shape[0]))


def test_compiles_into_one_graph():
    leaves = [_leaf(5, 12), _leaf(12), _leaf(12, 12), _leaf(5, 12)]
    with ops.backend("cpu"):
        eager = _block(*leaves)
        expected = torch.autograd.grad(eager, leaves)
        compiled = torch.compile(_block, fullgraph=True, backend="aot_eager")(*leaves)
        got = torch.autograd.grad(compiled, leaves)
    torch.testing.assert_close(compiled, eager)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_embedding_equals_the_reference():
    tables = [_leaf(30, 24), _leaf(2, 24), _leaf(16, 24), _leaf(24), _leaf(24)]
    ids = torch.arange(11), torch.arange(11) % 2, torch.arange(11)
    with ops.backend("cpu"):
        got = ops.embedding(*ids, *tables, 1e-12, padding_idx=0, dropout=DROPOUT)
    expected = reference.embedding(*ids, *tables, 1e-12, padding_idx=0, dropout=DROPOUT)
    torch.testing.assert_close(got, expected)
    dout = torch.randn(11, 24)
    for a, b in zip(torch.autograd.grad(got, tables, dout), torch.autograd.grad(expected, tables, dout), strict=True):
        torch.testing.assert_close(a, b)


def test_under_autocast():
    x, weight = _leaf(6, 32), _leaf(32)
    with torch.autocast("cpu", torch.bfloat16):
        hidden = ops.linear(x, _leaf(32, 32))
        assert hidden.dtype == torch.bfloat16
        with ops.backend("cpu"):
            out = ops.gelu(ops.layer_norm(hidden, weight, weight, 1e-5, residual=hidden), weight)
    assert out.dtype == torch.bfloat16
    out.float().sum().backward()
    assert x.grad.dtype == torch.float32
    assert weight.grad.dtype == torch.float32


class _Seen(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.ops = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.ops.append(func.name())
        return func(*args, **(kwargs or {}))


class _Functions(TorchFunctionMode):
    """Seen as a mode, whatever it does."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class _Tagged(torch.Tensor):
    pass


@pytest.fixture(scope="module")
def probe():
    """A new op, x + 1, and whether each call of its kernel was another's than that of `_define` itself."""
    reached = []

    def kernel(x):
        reached.append(sys._getframe(1).f_code.co_filename != _define.__file__)
        return x + 1

    op = _define.define(
        "probe_of_tests(Tensor x) -> Tensor", kernel, torch.empty_like, backward=lambda ctx, dout: dout.clone()
    )
    return op, reached


@pytest.mark.parametrize(
    ("context", "grad", "through_torch"),
    [
        (nullcontext, False, False),
        (torch.no_grad, True, False),
        (torch.inference_mode, True, False),
        (nullcontext, True, True),
        (_Seen, False, True),
        (_Functions, False, True),
        (torch.profiler.profile, False, True),
    ],
)
def test_a_call_passes_the_dispatcher_by_where_nobody_looks(probe, context, grad, through_torch):
    op, reached = probe
    reached.clear()
    x = torch.ones(3, requires_grad=grad)
    with context() as watcher:
        out = op(x)
    assert out.tolist() == [2, 2, 2]
    assert reached == [through_torch]
    if isinstance(watcher, _Seen):
        assert watcher.ops[0] == "fastbert::probe_of_tests"
    if isinstance(watcher, torch.profiler.profile):
        assert "fastbert::probe_of_tests" in {event.name for event in watcher.events()}
    if through_torch and grad:
        assert torch.autograd.grad(out.sum(), x)[0].tolist() == [1, 1, 1]


def test_other_tensors_transforms_and_compilers_see_the_op(probe):
    op, reached = probe
    reached.clear()
    op(torch.ones(3).as_subclass(_Tagged))
    assert reached == [True]
    with FakeTensorMode():
        assert isinstance(op(torch.ones(3)), FakeTensor)
    torch.func.vmap(lambda x: reached.append(_watchers.is_watched()) or x)(torch.ones(3))
    graph = make_fx(op)(torch.ones(3)).graph
    assert "fastbert.probe_of_tests.default" in str(graph)
    assert reached == [True, True, True]
    compiled = torch.compile(op, fullgraph=True, backend="aot_eager")
    assert compiled(torch.ones(3)).tolist() == [2, 2, 2]
    assert reached == [True] * 4


class _GivesNothingBack(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, dout):
        return None


@pytest.mark.parametrize("context", [nullcontext, _Functions], ids=["directly", "through torch"])
@pytest.mark.parametrize("op", ["layer_norm", "attention", "cross_entropy", "embedding", "gelu", "linear"])
def test_nothing_comes_back_from_what_follows(op, context):
    """As through torch's own ops: no gradient, or one of zeros, and no error."""
    x, w, ids = _leaf(6, 20), _leaf(20), torch.arange(6)
    calls = {
        "layer_norm": lambda: ops.layer_norm(x, w, w, 1e-5),
        "attention": lambda: ops.attention(*[x.view(6, 2, 10)] * 3, torch.tensor([0, 6], dtype=torch.int32), 6),
        "cross_entropy": lambda: ops.cross_entropy(x, ids, reduction="none"),
        "embedding": lambda: ops.embedding(ids, ids, ids, x, x, x, w, w, 1e-5),
        "gelu": lambda: ops.gelu(x, w),
        "linear": lambda: ops.linear(x.bfloat16(), x.bfloat16()),
    }
    with ops.backend("cpu"), context():
        out = calls[op]()
    _GivesNothingBack.apply(out).sum().backward()
    for leaf in (x, w):
        assert leaf.grad is None or not leaf.grad.any()


def test_gradients_that_nobody_asks_for_are_not_computed(monkeypatch):
    asked, plain = [], _cpu_linear._linear_backward

    def noted(dout, x, weight, wants):
        asked.append("".join(name for name, want in zip("xwb", wants, strict=True) if want))
        return plain(dout, x, weight, wants)

    monkeypatch.setattr(_cpu_linear, "_linear_backward", noted)
    leaf, weight, bias = (torch.randn(*shape).bfloat16().requires_grad_() for shape in ((5, 16), (24, 16), (24,)))
    x = leaf * 2
    loss = ops.linear(x, weight, bias).float().square().sum()
    loss.backward(retain_graph=True)
    slopes = torch.autograd.grad(loss, (x, weight, bias), retain_graph=True)
    assert torch.equal(weight.grad, slopes[1])
    for of, slope, names in (
        (x, slopes[0], "x"),
        (leaf, leaf.grad, "x"),
        (weight, slopes[1], "w"),
        (bias, slopes[2], "b"),
    ):
        asked.clear()
        assert torch.equal(torch.autograd.grad(loss, of, retain_graph=True)[0], slope)
        assert asked == [names]
    asked.clear()
    loss.backward(inputs=[bias], retain_graph=True)
    assert asked == ["b"]
    without = ops.linear(leaf, weight).float().square().sum()
    assert torch.autograd.grad(without, leaf, retain_graph=True)[0].any()
    without.backward()
    assert asked == ["b", "x", "xw"]
