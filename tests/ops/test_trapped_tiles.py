"""AMX's kernels as AMX's instructions, on a processor without AMX: trapped_tiles.c carries them out, one by one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import fastbert
from fastbert import _native

COMPILER = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")
LEVELS = [] if _native.why_missing() else _native.extension().supported_isas()
pytestmark = [
    pytest.mark.skipif("avx512_bf16" not in LEVELS, reason="the AMX kernels take AVX-512 with BF16 around their tiles"),
    pytest.mark.skipif("amx" in LEVELS, reason="the processor has AMX: every test of the kernels runs on it"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="SIGILL is answered as on Linux"),
    pytest.mark.skipif(COMPILER is None, reason="no C compiler"),
    pytest.mark.skipif("asan" in os.environ.get("LD_PRELOAD", ""), reason="the sanitizer answers SIGILL itself"),
]
TESTS = Path(__file__).parent
# After the tests: how many instructions of every kind were carried out.
CHILD = """
import ctypes, sys, pytest
status = pytest.main(sys.argv[1:])
library = ctypes.CDLL(None)
print("counts", *(library.trapped_tiles(kind) for kind in range(7)))
sys.exit(status)
"""


@pytest.fixture(scope="module")
def trap(tmp_path_factory) -> Path:
    library = tmp_path_factory.mktemp("trap") / "libtrap.so"
    source = TESTS / "trapped_tiles.c"
    # A multiply-add only where it says so: sums round as a processor's.
    flags = ["-O2", "-ffp-contract=off", "-mfma", "-shared", "-fPIC"]
    subprocess.run([COMPILER, *flags, "-o", library, source, "-ldl"], check=True)
    return library


@pytest.mark.parametrize(
    ("file", "counted"), [("gemm", "bfloat16"), ("int8", "int8"), ("attention", "bfloat16"), ("encoder", "int8")]
)
def test_kernels_pass_their_tests_by_amx_instructions(trap, tmp_path, file, counted):
    package = str(Path(fastbert.__file__).parent.parent)  # the child starts outside the source tree
    environment = os.environ | {"LD_PRELOAD": str(trap), "FASTBERT_TEST_TILES": "amx_trapped", "PYTHONPATH": package}
    arguments = ["-n0", "-p", "no:cacheprovider", "-p", "no:faulthandler", "-k", "amx_trapped or tiles or three_parts"]
    command = [sys.executable, "-c", CHILD, *arguments, str(TESTS / f"test_cpu_{file}.py")]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    kinds = ("configure", "release", "zero", "load", "store", "bfloat16", "int8")
    counts = dict(zip(kinds, map(int, done.stdout.split("counts ")[1].split()), strict=True))
    assert counts["configure"] == counts["release"] > 0
    assert all(counts[kind] > 0 for kind in ("zero", "load", "store", counted)), counts
