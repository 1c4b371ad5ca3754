"""The CPU kernels against torch eager: `pytest benchmarks/bench_ops.py -s`.

A kernel that does not equal the reference gets no figure. The two are run in turn, so that a busy machine is busy for
both; the best of many runs counts. GB/s counts what an op must read and write once, whatever the competitor moves.
"""

from __future__ import annotations

import time

import pytest
import torch
import torch.nn.functional as F
from close import assert_close
from shapes import LAYER_SHAPES, LOSS_SHAPES

from fastbert import _native, ops, reference
from fastbert.rng import Dropout

pytestmark = pytest.mark.skipif(_native.why_missing() is not None, reason=str(_native.why_missing()))

DROPOUT = Dropout(p=0.1, seed=1, offset=0, site=1)
ROUNDS = 15


def _gradients(function, leaves, dout):
    out = function(*leaves)
    return [out, *torch.autograd.grad(out, leaves, dout)]


def _interleaved(ours, theirs) -> tuple[list[float], list[float]]:
    """Seconds of each run of the two, run in turn."""
    seconds = [], []
    for _ in range(ROUNDS):
        for function, kept in ((ours, seconds[0]), (theirs, seconds[1])):
            start = time.perf_counter()
            function()
            kept.append(time.perf_counter() - start)
    return seconds


def _measure(benchmark, what: str, num_bytes: int, kernel, eager, truth, leaves, dout) -> None:
    """Correctness gate, then the interleaved comparison, then pytest-benchmark's own figures of ours."""
    leaves = [leaf.requires_grad_() for leaf in leaves]
    doubles = [leaf.detach().double().requires_grad_() for leaf in leaves]
    exact = _gradients(truth, doubles, dout.double())
    results = _gradients(kernel, leaves, dout), exact, _gradients(truth, leaves, dout)
    for i, (got, true, same) in enumerate(zip(*results, strict=True)):
        assert_close(got.detach(), true.detach(), same.detach(), gradient=i > 0, what=f"{what}, result {i}")
    del doubles, exact, results
    ours, theirs = _interleaved(lambda: _gradients(kernel, leaves, dout), lambda: _gradients(eager, leaves, dout))
    best, other = min(ours), min(theirs)
    benchmark.extra_info.update(torch_ms=1e3 * other, ratio=other / best, gb_per_s=num_bytes / best / 1e9)
    print(
        f"\n{what}: {1e3 * best:.2f} ms, torch {1e3 * other:.2f} ms, {other / best:.2f}x, "
        f"{num_bytes / best / 1e9:.1f} GB/s ({_native.isa()}, {torch.get_num_threads()} threads)"
    )
    benchmark.pedantic(_gradients, args=(kernel, leaves, dout), rounds=5)


@pytest.mark.parametrize("shape", LAYER_SHAPES)
def test_gelu(benchmark, shape):
    tokens, _, width = LAYER_SHAPES[shape]
    leaves = [torch.randn(tokens, width), torch.randn(width)]
    eager = lambda x, bias: F.gelu(x + bias)  # noqa: E731
    num_bytes = 4 * 5 * tokens * width  # x, out; dout, x, dx
    dout = torch.randn(tokens, width)
    _measure(benchmark, f"gelu {shape}", num_bytes, ops.gelu, eager, reference.gelu, leaves, dout)


@pytest.mark.parametrize("shape", LAYER_SHAPES)
def test_layer_norm_with_dropout_and_residual(benchmark, shape):
    tokens, hidden, _ = LAYER_SHAPES[shape]
    leaves = [torch.randn(tokens, hidden), torch.randn(hidden), torch.randn(hidden), torch.randn(hidden)]
    leaves.append(torch.randn(tokens, hidden))

    def kernel(x, weight, bias, x_bias, residual):
        return ops.layer_norm(x, weight, bias, 1e-12, x_bias=x_bias, residual=residual, dropout=DROPOUT)

    def eager(x, weight, bias, x_bias, residual):
        return F.layer_norm(residual + F.dropout(x + x_bias, DROPOUT.p), weight.shape, weight, bias, 1e-12)

    def truth(x, weight, bias, x_bias, residual):
        return reference.layer_norm(x, weight, bias, 1e-12, x_bias=x_bias, residual=residual, dropout=DROPOUT)

    num_bytes = 4 * 8 * tokens * hidden  # x, residual, sum, out; dout, sum, dx, dresidual
    dout = torch.randn(tokens, hidden)
    _measure(benchmark, f"dropout + residual + layer_norm {shape}", num_bytes, kernel, eager, truth, leaves, dout)


@pytest.mark.parametrize("shape", LAYER_SHAPES)
def test_dropout(benchmark, shape):
    tokens, hidden, _ = LAYER_SHAPES[shape]
    x, dout = torch.randn(tokens, hidden), torch.randn(tokens, hidden)
    kernel = lambda x: ops.dropout(x, DROPOUT)  # noqa: E731
    eager = lambda x: F.dropout(x, DROPOUT.p)  # noqa: E731
    truth = lambda x: reference.dropout(x, DROPOUT)  # noqa: E731
    _measure(benchmark, f"dropout {shape}", 4 * 4 * tokens * hidden, kernel, eager, truth, [x], dout)


@pytest.mark.parametrize("shape", LOSS_SHAPES)
def test_cross_entropy(benchmark, shape):
    rows, vocabulary = LOSS_SHAPES[shape]
    labels = torch.randint(vocabulary, (rows,))
    kernel = lambda x: ops.cross_entropy(x, labels)  # noqa: E731
    eager = lambda x: F.cross_entropy(x, labels)  # noqa: E731
    logits = torch.randn(rows, vocabulary)
    num_bytes = 4 * 3 * rows * vocabulary  # logits; logits, dlogits
    _measure(benchmark, f"cross_entropy {shape}", num_bytes, kernel, eager, eager, [logits], torch.tensor(1.0))
