"""Processes beside a stand-in for a GPU: torch asks for one once, at its import, so that each test has its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import stand_in_gpu
import torch

import fastbert

TESTS = Path(__file__).parents[1]


def _why_not() -> str | None:
    if torch.version.cuda is not None:
        return "torch was built for CUDA: the stand-in cannot be there too"
    if not sys.platform.startswith("linux"):
        return "libraries are loaded as on Linux"
    if "asan" in os.environ.get("LD_PRELOAD", ""):
        return "the sanitizer must come first of all libraries"
    return None if stand_in_gpu.COMPILER else "no C++ compiler"


@pytest.fixture(scope="session")
def library(tmp_path_factory) -> Path:
    reason = _why_not()
    if reason:
        pytest.skip(reason)
    made = tmp_path_factory.mktemp("stand_in") / "libstand_in_gpu.so"
    stand_in_gpu.build(made)
    return made


@pytest.fixture
def run(library, tmp_path):
    """Runs Python with these arguments; returns what it printed. ``children``: the processes that it starts have the
    device too; pytest's plugin brings it to one alone."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("import stand_in_gpu\n")

    def run(*arguments: str, children: bool = False, **variables: str) -> str:
        paths = [*([site] if children else []), Path(fastbert.__file__).parents[1], TESTS, TESTS / "triton_backend"]
        path = os.pathsep.join(map(str, paths))
        known = {"PYTHONPATH": path, stand_in_gpu.ENVIRONMENT: str(library), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, *arguments]
        done = subprocess.run(command, env=os.environ | known | variables, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
        return done.stdout

    return run


@pytest.fixture
def run_tests(run):
    """Runs tests of these files, those whose names match; all must pass."""

    def run_tests(*files: str, chosen: str, backend: str) -> None:
        options = ("-n0", "-q", "-p", "stand_in_gpu", "-p", "no:cacheprovider", "-k", chosen)
        out = run("-m", "pytest", *options, *(str(TESTS / file) for file in files), FASTBERT_BACKEND=backend)
        assert "." in out.split()[0], out
        assert set(out.split()[0]) <= {".", "s"}, out

    return run_tests
