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
# After the tests of a file: how many instructions of every kind were carried out for them.
CHILD = """
import ctypes, sys, pytest
library = ctypes.CDLL(None)

class Counter:
    before, lines = [0] * 7, []
    def pytest_runtest_teardown(self, item, nextitem):
        if nextitem is None or nextitem.path != item.path:
            now = [library.trapped_tiles(kind) for kind in range(7)]
            self.lines.append(("counts", item.path.stem, *(b - a for a, b in zip(self.before, now))))
            self.before = now

counter = Counter()
status = pytest.main(sys.argv[1:], plugins=[counter])
for line in counter.lines:
    print(*line)
sys.exit(status)
"""
# A file, and the product that it is about.
FILES = {"gemm": "bfloat16", "int8": "int8", "attention": "bfloat16", "encoder": "int8"}
CHOSEN = "(amx_trapped or tiles or two_parts)"
# Three quarters of the instructions are those of a twentieth of the tests: large sizes, and the same by more threads.
LONG = (
    "(two_threads_and_again or threads_or_repetition or lengths3 or chosen_rows or go_on_from or odd or far_from_zero)"
)


@pytest.fixture(scope="module")
def trap(tmp_path_factory) -> Path:
    library = tmp_path_factory.mktemp("trap") / "libtrap.so"
    source = TESTS / "trapped_tiles.c"
    # A multiply-add only where it says so: sums round as a processor's.
    flags = ["-O2", "-ffp-contract=off", "-mfma", "-mavx512f", "-shared", "-fPIC"]
    subprocess.run([COMPILER, *flags, "-o", library, source, "-ldl"], check=True)
    return library


@pytest.mark.parametrize(
    ("names", "files"),
    [
        pytest.param(f"{CHOSEN} and not {LONG}", tuple(FILES), id="short"),
        pytest.param(f"{CHOSEN} and {LONG}", ("int8", "attention", "encoder"), id="long", marks=pytest.mark.slow),
    ],
)
def test_kernels_pass_their_tests_by_amx_instructions(trap, tmp_path, names, files):
    package = str(Path(fastbert.__file__).parent.parent)  # the child starts outside the source tree
    environment = os.environ | {"LD_PRELOAD": str(trap), "FASTBERT_TEST_TILES": "amx_trapped", "PYTHONPATH": package}
    arguments = ["-n0", "-p", "no:cacheprovider", "-p", "no:faulthandler"]
    arguments += ["-k", names, *(str(TESTS / f"test_cpu_{file}.py") for file in files)]
    command = [sys.executable, "-c", CHILD, *arguments]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("counts ")]
    assert [file for file, *_ in lines] == [f"test_cpu_{file}" for file in files]
    kinds = ("configure", "release", "zero", "load", "store", "bfloat16", "int8")
    for (file, *numbers), name in zip(lines, files, strict=True):
        counted = FILES[name]
        counts = dict(zip(kinds, map(int, numbers), strict=True))
        assert counts["configure"] == counts["release"] > 0, file
        assert all(counts[kind] > 0 for kind in ("zero", "load", "store", counted)), (file, counts)
