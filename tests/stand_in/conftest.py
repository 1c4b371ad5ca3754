"""Processes beside a stand-in for a GPU: torch asks for one once, at its import, so that each test has its own."""

from __future__ import annotations

import itertools
import json
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

HERE = Path(__file__).parent
TESTS = HERE.parent


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


@pytest.fixture(scope="module")
def script(library, tmp_path_factory):
    """Runs a script of this directory that starts no process and is told nothing by its environment; returns what it
    printed. In a fork of one process for all tests of a module: scripts take less time than what they import."""
    directory, server, calls = tmp_path_factory.mktemp("scripts"), [], itertools.count()

    def script(name: str, *arguments: str) -> str:
        if not server:
            paths = (Path(fastbert.__file__).parents[1], TESTS, TESTS / "triton_backend")
            known = {"PYTHONPATH": os.pathsep.join(map(str, paths)), stand_in_gpu.ENVIRONMENT: str(library)}
            options = {"cwd": directory, "stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            command = [sys.executable, str(HERE / "scripts.py")]
            server.append(subprocess.Popen(command, env=os.environ | known | {"OMP_NUM_THREADS": "1"}, **options))
        out = directory / f"{next(calls)}.txt"
        print(json.dumps([str(out), str(HERE / name), *arguments]), file=server[0].stdin, flush=True)
        code = server[0].stdout.readline()
        told = [path.read_text() if path.exists() else "" for path in (out, Path(f"{out}.errors"))]
        assert code == "0\n", told[0][-6000:] + told[1][-3000:]
        return told[0]

    yield script
    for process in server:
        process.kill()
        process.communicate()


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
