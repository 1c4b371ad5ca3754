"""Processes beside a stand-in for a GPU: torch asks for one once, at its import, so that each test has its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import stand_in_gpu
import torch
from filelock import FileLock

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
    # The workers of a run have one directory above their own; whoever comes first compiles for all.
    directory = tmp_path_factory.getbasetemp()
    made = (directory.parent if "PYTEST_XDIST_WORKER" in os.environ else directory) / "libstand_in_gpu.so"
    with FileLock(f"{made}.lock"):
        if not made.exists():
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
    """Runs tests, of each file those whose names match; all must pass, and of each file at least one."""

    def run_tests(chosen: dict[str, str], backend: str) -> None:
        words = " or ".join(f"({Path(file).name} and ({names}))" for file, names in chosen.items())
        options = ("-n0", "-vv", "-p", "stand_in_gpu", "-p", "no:cacheprovider", "-k", words)
        out = run("-m", "pytest", *options, *(str(TESTS / file) for file in chosen), FASTBERT_BACKEND=backend)
        for file in chosen:
            assert re.search(rf"{re.escape(Path(file).name)}::.* PASSED", out), f"nothing of {file} was run: {out}"

    return run_tests
