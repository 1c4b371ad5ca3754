"""Products with packed weights against torch's: `OMP_NUM_THREADS=1 pytest benchmarks/bench_gemm.py -s`.

A product that misses the tolerance rule gets no figure. Ours, torch's at the same dtype and torch's in float32 are run
in turn; medians count. The error printed is the root mean square against float64, over torch's at the same dtype.
"""

from __future__ import annotations

import statistics

import pytest
import torch
import torch.nn.functional as F
from close import assert_close

from fastbert import _native, reference
from fastbert.bench.turns import timed_in_turn
from fastbert.ops import _cpu_linear

pytestmark = pytest.mark.skipif(_native.why_missing() is not None, reason=str(_native.why_missing()))

# K -> N of BERT-base; rows of one short sentence, of a small batch, of 8 sequences of 128 tokens.
LAYERS = [(768, 768), (768, 3072), (3072, 768)]
ROWS = [32, 256, 1024]
ROUNDS = 15


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: f"{layer[0]}-{layer[1]}")
@pytest.mark.parametrize("rows", ROWS)
def test_linear(benchmark, rows, layer, dtype):
    k, n = layer
    x, weight, bias = (torch.randn(*shape).to(dtype) for shape in ((rows, k), (n, k), (n,)))
    wide = [t.float() for t in (x, weight, bias)]
    exact, same = reference.linear(*(t.double() for t in (x, weight, bias))), F.linear(x, weight, bias)
    bias32, out = bias.float(), torch.empty(rows, n, dtype=dtype)

    def ours():
        _cpu_linear._product(x, weight, bias32, out)

    ours()
    assert_close(out, exact, same)
    error = ((out.double() - exact).square().mean() / (same.double() - exact).square().mean()).sqrt()
    sides = {"ours": ours, "torch": lambda: F.linear(x, weight, bias), "float32": lambda: F.linear(*wide)}
    mine, theirs, single = map(statistics.median, timed_in_turn(sides, ROUNDS).values())
    rate = 2 * rows * n * k / mine / 1e9
    benchmark.extra_info.update(gflops=rate, ratio=theirs / mine, ratio_to_float32=single / mine, error=float(error))
    print(
        f"\n{rows} x {k} -> {n} {str(dtype)[6:]}: {rate:.0f} GFLOP/s, torch {theirs / mine:.2f}x, torch float32 "
        f"{single / mine:.2f}x, error {error:.2f} of torch's ({_native.isa()}, {torch.get_num_threads()} threads)"
    )
    benchmark.pedantic(ours, rounds=3)
