"""What a build makes of csrc/cuda: machine code for three GPUs where nvcc is there, nothing and no harm elsewhere."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch

from fastbert import _native, ops
from fastbert._environment import environment
from fastbert.errors import BackendError
from fastbert.ops import RoomPacking, _cuda

REPO = Path(__file__).resolve().parents[2]


def built_with_cuda() -> bool:
    return _native.why_missing() is None and hasattr(_native.extension(), "cuda_pack")


def test_nvcc_means_kernels():
    if not shutil.which("nvcc") or _native.why_missing() or os.environ.get("FASTBERT_NO_CUDA", "0") not in ("", "0"):
        pytest.skip("no nvcc, no extension, or FASTBERT_NO_CUDA is set")
    assert built_with_cuda()


@pytest.fixture(scope="module")
def resources():
    """Text of cuobjdump -res-usage of the extension; Triton's wheel has the tool."""
    triton = pytest.importorskip("triton")
    if not built_with_cuda():
        pytest.skip("the extension has no CUDA kernels")
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    done = subprocess.run(
        [tool, "-res-usage", _native.extension().__file__], capture_output=True, text=True, check=True
    )
    return done.stdout


def test_every_kernel_is_there_for_every_architecture_and_spills_nothing(resources):
    kernels: dict[str, set[str]] = {}
    parts = re.split(r"arch = (sm_\w+)", resources)
    for arch, text in zip(parts[1::2], parts[2::2], strict=True):
        for name, stack, registers in re.findall(r"Function (\S+):\s+REG:\d+ STACK:(\d+).*?|Function (\S+):", text):
            assert not registers, f"{registers} has no line of resources"
            assert int(stack) == 0, f"{name} spills {stack} bytes a thread on {arch}"
            kernels.setdefault(arch, set()).add(name)
    wanted = {f"sm_{name.strip()}" for name in _native.extension().cuda_architectures.split(",")}
    assert {"sm_80", "sm_90a"} <= wanted <= set(kernels)
    some = kernels["sm_80"]
    assert all(found == some for found in kernels.values())
    # Counting, scanning, placing; rows of 16, 4 and 1 bytes by two kinds of places; LAMB for its pairs of types.
    assert len(some) == 3 + 3 * 2 + 5 + 1 + 3


def test_without_a_device_a_launch_is_an_error_in_words():
    if not built_with_cuda() or torch.cuda.is_available():
        pytest.skip("the extension has no CUDA kernels, or there is a device")
    with pytest.raises(RuntimeError, match=r"the CUDA kernel pack could not be started: .*CUDA"):
        _native.extension().cuda_pack(0, 1, 1, 1, [0] * 5, 0)
    assert _native.extension().cuda_why_not()
    with (
        ops.backend("cuda"),
        pytest.raises(BackendError, match="pack: backend 'cuda' was asked for by name but cannot"),
    ):
        RoomPacking.from_mask(torch.ones(2, 3), 6)


@pytest.mark.parametrize(
    ("driver", "runtime", "goes"), [(12040, 13000, False), (12040, 12080, True), (13010, 12080, True)]
)
def test_a_driver_that_is_older_than_the_toolkit_is_said(monkeypatch, driver, runtime, goes):
    """torch runs on it, by a runtime of its own; the kernels' runtime would refuse it at the first launch."""
    if not built_with_cuda():
        pytest.skip("the extension has no CUDA kernels")
    assert _native.extension().cuda_versions()[1] >= 11000
    extension = types.SimpleNamespace(cuda_versions=lambda: (driver, runtime))
    monkeypatch.setattr(_native, "extension", lambda: extension)
    monkeypatch.setattr(_cuda, "_REASON", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    _cuda._reason_of_driver.cache_clear()
    why = _cuda.why_missing()
    _cuda._reason_of_driver.cache_clear()
    assert why == (None if goes else "they were built with CUDA 13.0, and the driver is for 12.4")


def test_the_doctor_says_what_was_built(monkeypatch):
    said = environment()["hardware"]["kernels_cuda"]
    if built_with_cuda():
        assert said.startswith("for sm_80, 90a")
    else:
        assert said.startswith("none: ")
    row = next(row for row in environment()["ops"] if row["op"] == "pack")
    assert row["why_not"].get("cuda") == _cuda.why_missing()


def test_a_build_without_a_working_nvcc_has_no_part_of_it(tmp_path):
    """Configured only: compiling the rest takes minutes."""
    pybind11 = pytest.importorskip("pybind11")
    if not (shutil.which("cmake") and shutil.which("ninja") and shutil.which("c++")):
        pytest.skip("no cmake, ninja or C++ compiler")
    command = ["cmake", "-S", str(REPO), "-B", str(tmp_path), "-G", "Ninja", f"-DPython_EXECUTABLE={sys.executable}"]
    command += [f"-Dpybind11_DIR={pybind11.get_cmake_dir()}"]
    environment = {**os.environ, "CUDACXX": "/bin/false"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    plan = (tmp_path / "build.ninja").read_text()
    assert "csrc/cublaslt.cpp" in plan
    assert ".cu.o" not in plan
    assert "FASTBERT_CUDA" not in plan


def test_gains_decide_who_is_chosen(monkeypatch, tmp_path):
    """A file of measurements of this GPU: below 2 % nothing is chosen, above it is; another GPU has its own."""
    monkeypatch.setattr(_cuda, "MEASURED", tmp_path)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "NVIDIA H200")
    (tmp_path / "nvidia-h200.json").write_text('{"rows": {"pack": {"gain": 1.3}, "lamb": {"gain": 1.01}}}')
    _cuda._gains.cache_clear()
    device = torch.device("cuda", 0)
    assert _cuda.why_not_measured("pack", device) is None
    assert _cuda.why_not_measured("lamb", device) == "lamb is measured at 1.01 times the speed of what serves instead"
    assert _cuda.why_not_measured("mlp", device) == "no measurement of mlp on NVIDIA H200 is recorded"
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "NVIDIA A100-SXM4-80GB")
    assert "no measurement of pack on NVIDIA A100" in _cuda.why_not_measured("pack", device)
    with ops.backend("cuda"):
        assert _cuda.why_not_measured("mlp", device) is None
    _cuda._gains.cache_clear()
