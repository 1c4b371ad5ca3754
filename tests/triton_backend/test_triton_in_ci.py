"""Triton without a GPU: the kernels in the interpreter, what launches compile, and the machine code they become.

Each needs a process of its own: triton decides at its import whether it interprets.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from packaging.version import Version

import fastbert

triton = pytest.importorskip("triton")
HERE = Path(__file__).parent
# Up to Triton 3.6 it makes Python numbers of arrays of one element, which numpy 2.4 refuses. A GPU runs the kernels all
# the same: torch 2.11 brings 3.6, and no bound on numpy with it.
interpreted = pytest.mark.skipif(
    Version(triton.__version__) < Version("3.7") and Version(np.__version__) >= Version("2.4"),
    reason=f"the interpreter of Triton {triton.__version__} does not run with numpy {np.__version__}",
)


def run(*command: str, interpret: bool) -> str:
    paths = [str(Path(fastbert.__file__).parent.parent), str(HERE.parent)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    environment.pop("TRITON_INTERPRET", None)
    if interpret:
        environment["TRITON_INTERPRET"] = "1"
    done = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, cwd=HERE)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return done.stdout


def run_in_the_interpreter(chosen: str, *names: str) -> None:
    options = ("-m", chosen, "-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib")
    files = [str(HERE / f"test_triton_{name}.py") for name in names]
    out = run("-m", "pytest", *options, *files, interpret=True)
    assert " passed" in out
    assert "skipped" not in out


# In parts, as all of them would reach a test's time limit on a slow machine.
PARTS = (("kernels", "memory", "optimizer"), ("encoder", "fp8", "replay", "second_derivatives", "step"))


@interpreted
@pytest.mark.parametrize("names", PARTS, ids=" ".join)
def test_the_kernels_are_right_in_the_interpreter(names):
    run_in_the_interpreter("not slow", *names)


@interpreted
@pytest.mark.slow
def test_the_slow_cases_are_right_in_the_interpreter():
    run_in_the_interpreter("slow", *(name for names in PARTS for name in names))


@pytest.mark.parametrize(("capability", "settings"), [("90", 91), pytest.param("80", 57, marks=pytest.mark.slow)])
def test_every_shipped_setting_compiles_without_spills_and_uses_the_matrix_units(capability, settings):
    out = run(str(HERE / "aot.py"), "--short", capability, interpret=False)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in out.splitlines()[2:]]
    assert len(rows) == settings, "those for sm_80, and for sm_90 all of them, those in 8 bits too"
    # KiB of shared memory that a block may have (CUDA guide, table 27). GPUs of capability 8.6 and 8.9, which take the
    # settings of 8.0, have 99 and not its 163.
    limits = {"sm_80": 99, "sm_90": 227}
    for name, arch, registers, shared, stack, hmma, hgmma, approximate, ahead, torn, chained, resident in rows:
        if name.startswith(("layer_norm", "embedding")) or name.endswith("fp32"):
            assert int(approximate) == 0, f"{name} rounds otherwise than the interpreter, which the tests run in"
        if name.endswith("fp32"):
            assert int(chained) == 0, f"{name} sums term after term over all tiles"
        if name.startswith("sum_rows"):
            assert int(ahead) > 0, f"{name} waits for each of its rows"
        assert int(torn) == 0, f"{name} uses {torn} casts to 8 bits in the two ways at once that ptxas gets wrong"
        assert int(registers) <= 255, name
        assert float(shared) <= limits[arch], name
        if arch == "sm_90":
            assert int(stack) == 0, f"{name} spills {stack} bytes a thread"
        if name.startswith("attention_fwd") and name.split()[2] in ("S=64", "S=128"):
            assert int(resident) > 1, f"nothing fills the waits of {name}"
        if name.startswith("attention") and not name.endswith("fp32"):
            assert int(hgmma if arch == "sm_90" else hmma) > 0, f"{name} does not use the matrix units of {arch}"


def test_what_launches_are_given_compiles():
    """Once for all batches and layers."""
    out = run(str(HERE / "launches.py"), interpret=False)
    assert out.endswith(" kernels\n"), out


def test_planted_bugs_have_their_place_and_their_tests():
    out = run(str(HERE / "planted_bugs.py"), "--check", interpret=True)
    assert out.endswith(" bugs have their place and their tests\n"), out


@interpreted
@pytest.mark.slow  # of the tests, not of the kernels
def test_planted_bugs_are_caught():
    """One of each kind; python tests/triton_backend/planted_bugs.py plants them all."""
    out = run(str(HERE / "planted_bugs.py"), "--short", interpret=True)
    assert out.endswith("9 of 9 caught\n"), out


@pytest.mark.slow
def test_the_hosts_time_is_measured_without_a_gpu():
    """docs/gpu.md has its figures."""
    out = run(str(HERE.parents[1] / "benchmarks" / "gpu_host_time.py"), interpret=False)
    assert out.count(" ms, forward and backward ") == 3
