"""The CPU ops as torch ops: opcheck, torch.compile, and what is composed of them."""

from __future__ import annotations

import pytest
import torch

from fastbert import _native, ops, reference
from fastbert.rng import Dropout

pytestmark = pytest.mark.skipif(_native.why_missing() is not None, reason=str(_native.why_missing()))

DROPOUT = Dropout(p=0.2, seed=11, offset=4, site=2)
BITS = (13107, 11, 4, 2)  # threshold, seed, offset, site


def _leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


def _samples():
    x, w = _leaf(6, 20), _leaf(20)
    labels = torch.arange(6)
    yield "gelu", (x, w, False)
    yield "gelu", (x, None, True)
    yield "dropout", (x, *BITS)
    yield "keep_mask", (torch.arange(6), 20, *BITS)
    yield "layer_norm", (x, w, _leaf(20), 1e-5, None, None, 0, 0, 0, 0, True)
    yield "layer_norm", (x, w, _leaf(20), 1e-5, _leaf(20), _leaf(6, 20), *BITS, True)
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
