"""Attention on the CPU backend against the reference in float64: odd, equal, empty and mixed lengths."""

from __future__ import annotations

import pytest
import torch
from close import assert_close

from fastbert import _native, ops
from fastbert.rng import Dropout

pytestmark = pytest.mark.skipif(_native.why_missing() is not None, reason=str(_native.why_missing()))

LENGTHS = {
    "one token": [1],
    "equal": [24, 24, 24],
    "equal and empty": [5, 0, 5],
    "odd": [21, 51, 1, 53, 119, 2],
    "sorted and nearly equal": [13, 12, 11, 10, 9],
    "all empty": [0, 0],
}


def _run(qkv, bounds, longest, dout, dropout, causal, backend):
    leaves = [x.detach().clone().requires_grad_() for x in qkv]
    with ops.backend(backend):
        out = ops.attention(*leaves, bounds, longest, dropout=dropout, causal=causal)
    return [out.detach(), *torch.autograd.grad(out, leaves, dout)]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", LENGTHS)
def test_against_the_reference(name, dtype, p, causal):
    lengths = LENGTHS[name]
    total, longest = sum(lengths), max(lengths)
    bounds = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)
    *qkv, dout = torch.randn(4, total, 3, 16).to(dtype)
    dropout = Dropout(p, seed=5, offset=2, site=1) if p else None
    wide = [x.double() for x in qkv]
    truth = _run(wide, bounds, longest, dout.double(), dropout, causal, "reference")
    same = _run(qkv, bounds, longest, dout, dropout, causal, "reference")
    got = _run(qkv, bounds, longest, dout, dropout, causal, "cpu")
    for what, a, b, c in zip(("out", "dq", "dk", "dv"), got, truth, same, strict=True):
        assert_close(a, b, c, gradient=what != "out", what=what)
    assert all(
        torch.equal(a, b) for a, b in zip(got, _run(qkv, bounds, longest, dout, dropout, causal, "cpu"), strict=True)
    )


def test_other_sequences_change_nothing_but_rounding():
    """A sequence beside longer or shorter ones, whose places past the end are filled, gives the same result."""
    q, k, v = torch.randn(3, 7, 2, 8)
    alone = ops.attention(q, k, v, torch.tensor([0, 7], dtype=torch.int32), 7)
    others = torch.full((3, 9, 2, 8), 1e4)
    joined = [torch.cat([others[i], x, others[i]]) for i, x in enumerate((q, k, v))]
    with ops.backend("cpu"):
        out = ops.attention(*joined, torch.tensor([0, 9, 16, 25], dtype=torch.int32), 9)
    torch.testing.assert_close(out[9:16], alone)
