"""How long packed copies of weights are kept."""

from __future__ import annotations

import gc

import pytest
import torch

from fastbert import _native, ops
from fastbert.ops import _cpu_linear

pytestmark = pytest.mark.skipif(_native.why_missing() is not None, reason=str(_native.why_missing()))


def test_a_dead_parameter_leaves_nothing_behind():
    gc.collect()  # of what other tests left in cycles
    held = len(_cpu_linear._packed)
    weight = torch.randn(16, 16).bfloat16()
    with ops.backend("cpu"):
        ops.linear(torch.randn(3, 16).bfloat16(), weight)
    assert len(_cpu_linear._packed) == held + 1
    del weight
    gc.collect()
    assert len(_cpu_linear._packed) == held


def test_slices_of_a_weight_that_begin_anywhere_leave_little_behind():
    """Such as the rows of drawn candidates: all of them were kept as long as the whole."""
    whole, x = torch.randn(256, 32).bfloat16(), torch.randn(3, 32).bfloat16()
    parts = [whole, *whole.split(64)]
    with ops.backend("cpu"):
        for weight in parts:
            ops.linear(x, weight)
        assert all(_cpu_linear._packed.find(weight) for weight in parts)
        for start in range(1, 190):
            got = ops.linear(x, whole[start : start + 64])
            assert torch.equal(got, ops.linear(x, whole[start : start + 64].clone()))
    kept = [start for start in range(193) if _cpu_linear._packed.find(whole[start : start + 64])]
    assert kept == list(range(182, 190))
    assert not _cpu_linear._packed.find(whole)
