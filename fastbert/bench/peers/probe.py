"""Not a model: measures the machine's own speed at this moment, by the loops of csrc/cpu/probe.cpp."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ... import _native

_COPY_BYTES = 1 << 27  # larger than caches
# Level -> another one whose loops include all of its own.
SAME_LOOPS = {
    "scalar": "neon_dot",
    "avx2": "avx2_vnni",
    "avx512": "avx512_vnni",
    "avx512_vnni": "avx512_bf16",
    "avx512_bf16_pairs": "avx512_bf16",
    "avx512_winograd": "avx512_bf16",
    "avx512_winograd_registers": "avx512_bf16",
}


class Probe:
    """Measures each loop at each instruction-set level that has it."""

    def __init__(self, directory: Path, dtype: str, threads: int) -> None:
        import torch

        # Sets the number of threads of the OpenMP library that the loops share with torch.
        torch.set_num_threads(threads)
        self.module = _native.extension()
        self.source = np.ones(_COPY_BYTES, np.uint8)
        self.target = np.zeros(_COPY_BYTES, np.uint8)

    def rates(self) -> dict[str, float]:
        """GFLOP/s (GOP/s) by "fp32 avx512", ..., and GB/s by "copy" (bytes read and bytes written)."""
        found, before = {}, self.module.isa()
        levels = self.module.supported_isas()
        try:
            for level in levels:
                if SAME_LOOPS.get(level) in levels:
                    continue
                self.module.set_isa(level)
                for what in _native.LOOPS:
                    rate = _native.loop_rate(what)
                    if rate:
                        found[f"{what} {level}"] = rate / 1e9
            seconds = self.module.probe_copy(self.source.ctypes.data, self.target.ctypes.data, _COPY_BYTES)
            found["copy"] = 2 * _COPY_BYTES / seconds / 1e9
        finally:
            self.module.set_isa(before)
        return found


def peaks(rates: dict[str, float]) -> dict[str, float]:
    """The machine's peak per dtype: the best loop of any level; fp32's for a dtype without instructions."""
    best = {
        dtype: max((rate for name, rate in rates.items() if name.split()[0] == dtype), default=0.0)
        for dtype in ("fp32", "bf16", "int8")
    }
    # A library may convert bfloat16 to float32 if that is faster.
    return {dtype: max(rate, best["fp32"]) for dtype, rate in best.items()}
