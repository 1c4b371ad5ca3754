"""What tests of the CPU kernels share: a run at one level, and buffers that show a write out of place."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from fastbert import _native

SUPPORTED = [] if _native.why_missing() else _native.extension().supported_isas()
# These differ from the level below in int8 products alone (the last in nothing): tests of other kernels leave them out.
_INT8_ALONE = ("neon_dot", "avx2_vnni", "avx512_vnni", "avx512_bf16")
LEVELS = [level for level in SUPPORTED if level not in _INT8_ALONE]
# Two levels test the AMX kernels where there is no AMX. They are never chosen by themselves, so they are not among the
# supported ones: tiles in plain C++, and, where tests/ops/trapped_tiles.c is preloaded, AMX's own instructions.
_WITHOUT_AMX = os.environ.get("FASTBERT_TEST_TILES", "amx_emulated")
TILES = os.environ.get("FASTBERT_TEST_TILES", "amx" if "amx" in LEVELS else _WITHOUT_AMX)
# Where there is AMX, its own instructions pass all tests of them. The emulation is compared with them there
# (tests/ops/test_cpu_int8.py), and FASTBERT_TEST_TILES=amx_emulated runs the other tests at it too.
_INSTEAD = [] if "amx" in LEVELS and "FASTBERT_TEST_TILES" not in os.environ else [_WITHOUT_AMX]
ALL_LEVELS = [*LEVELS, *_INSTEAD] if LEVELS else []
# "avx2_vnni" where only AVX-512 has its instruction: in that encoding, with the same registers.
_IN_AVX512 = ["avx2_vnni_evex"] if "avx512_vnni" in SUPPORTED and "avx2_vnni" not in SUPPORTED else []
INT8_LEVELS = [*SUPPORTED, *_IN_AVX512, *_INSTEAD] if SUPPORTED else []
# Of which one product is enough, since integers are exact.
EMULATED = [level for level in ("amx_emulated",) if SUPPORTED and level not in INT8_LEVELS]


def _multiplies_eight_bits() -> bool:
    zeros, one = torch.zeros(16, 16, dtype=torch.float8_e4m3fn), torch.ones(1)
    try:
        torch._scaled_mm(zeros, zeros.t(), one, one, out_dtype=torch.float32)
    except NotImplementedError:
        return False
    return True


# torch 2.6 does not: the reference serves there.
needs_eight_bits = pytest.mark.skipif(
    not _multiplies_eight_bits(), reason="this torch has no product of 8-bit floats on a CPU"
)


@contextmanager
def at_level(name: str) -> Iterator[None]:
    """Kernels of this level; every new tensor is filled with NaN, so that what is not written shows."""
    before = _native.isa()
    _native.extension().set_isa(name)
    torch.use_deterministic_algorithms(True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
        _native.extension().set_isa(before)


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Guarded:
    """Tensors cut out of larger ones of NaN bytes: `check` fails where something beside a tensor was written."""

    MARGIN = 64  # elements on either side: four vectors

    def __init__(self) -> None:
        self._all: list[tuple[Tensor, int]] = []

    def __call__(self, like: Tensor) -> Tensor:
        """A copy of ``like`` with guards on both sides, contiguous."""
        whole = torch.empty(like.numel() + 2 * self.MARGIN, dtype=like.dtype)
        whole.view(torch.uint8).fill_(0xFF)  # a NaN of every width, and an odd integer
        inside = whole[self.MARGIN : self.MARGIN + like.numel()].view(like.shape)
        inside.copy_(like)
        self._all.append((whole, like.numel()))
        return inside

    def check(self) -> None:
        for whole, size in self._all:
            for guard in (whole[: self.MARGIN], whole[self.MARGIN + size :]):
                assert bool((guard.view(torch.uint8) == 0xFF).all()), "a kernel wrote outside its tensor"
