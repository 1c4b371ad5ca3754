"""Each op against torch, under pytest-benchmark: `pytest benchmarks/bench_ops.py -s`.

The cases, the gate and the interleaved comparison are those of `fastbert bench kernels`; pytest-benchmark's own figures
are ours alone.
"""

from __future__ import annotations

import pytest
import torch

from fastbert import _native
from fastbert.bench import kernels
from fastbert.bench.peers.probe import Probe, peaks

pytestmark = pytest.mark.skipif(_native.why_missing() is not None, reason=str(_native.why_missing()))

ROUNDS = 15


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize(("make", "shape"), kernels.CASES, ids=[f"{m.__name__}-{s}" for m, s in kernels.CASES])
def test_op(benchmark, make, shape, dtype):
    case = make(shape)
    rates = Probe(None, "fp32", torch.get_num_threads()).rates()
    row = kernels.measure(case, dtype, ROUNDS, peaks(rates) | {"copy": rates["copy"]})
    assert row["reason"] is None, row["reason"]
    benchmark.extra_info.update(row)
    print(
        f"\n{row['op']} {shape} {row['dtype']}: {row['ours_ms']:.2f} ms, torch {row['torch_ms']:.2f} ms, "
        f"{row['ratio']:.2f}x, {row['gb_per_s']:.1f} GB/s ({_native.isa()}, {torch.get_num_threads()} threads)"
    )
    leaves = [
        (leaf.to(dtype) if index in case.activations else leaf).requires_grad_()
        for index, leaf in enumerate(case.leaves)
    ]
    benchmark.pedantic(kernels.gradients, args=(case.kernel, leaves, case.dout), rounds=5)
