"""What the processor can do, and what must be set before torch uses it."""

from __future__ import annotations

import os


def cap_onednn() -> bool:
    """Caps oneDNN's instruction set on machines whose AMX it would crash on; to be completed with CPUID detection."""
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
    return True
