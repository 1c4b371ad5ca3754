"""Where the Triton kernels cannot run on a GPU's machine, and what is said of it: other kernels serve there."""

from __future__ import annotations

from importlib import metadata
from types import SimpleNamespace

import pytest
import torch

from fastbert.ops import _triton

pytest.importorskip("triton")


@pytest.fixture
def installed(monkeypatch):
    """As beside a torch for CUDA, with a compiler and Python's headers."""
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(_triton, "_INTERPRETING", False)
    monkeypatch.setenv("CC", "cc")
    monkeypatch.setattr(_triton.Path, "exists", lambda _: True)


def test_nothing_is_in_the_way_of_what_is_installed(installed):
    assert _triton._reason_of_installation() is None


@pytest.mark.parametrize(
    ("version", "serves"), [("3.2.0", False), ("2.3.1", False), ("3.3.0+git", True), ("3.10", True)]
)
def test_a_triton_that_cannot_compile_the_kernels(installed, monkeypatch, version, serves):
    """3.2 comes with torch 2.6."""
    monkeypatch.setattr(metadata, "version", lambda _: version)
    assert (_triton._reason_of_installation() is None) == serves
    if not serves:
        assert f"triton 3.3 or newer, got {version}" in _triton._reason_of_installation()


def test_no_compiler(installed, monkeypatch, tmp_path):
    """As in a container that has what torch needs."""
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "Triton needs a C compiler" in _triton._reason_of_installation()
    (tmp_path / "gcc").write_text("")
    (tmp_path / "gcc").chmod(0o755)
    assert _triton._reason_of_installation() is None


def test_no_headers(installed, monkeypatch):
    monkeypatch.setattr(_triton.Path, "exists", lambda _: False)
    assert "Python.h (install python3-dev)" in _triton._reason_of_installation()


def test_tensors_on_two_gpus(monkeypatch):
    """An address on another GPU is an address like any other: reading it breaks the process's context."""
    monkeypatch.setattr(_triton, "why_not_device", lambda x: None)
    x, y = (SimpleNamespace(device=torch.device("cuda", number), dtype=torch.float32) for number in range(2))
    assert _triton.why_not(x, None, x, parameters=(x,)) is None
    for reason in (_triton.why_not(x, parameters=(x, y)), _triton.why_not(x, y)):
        assert reason == "the Triton kernels take tensors on one device, got cuda:0 and cuda:1"


def test_a_gpu_with_too_little_shared_memory(monkeypatch):
    found = {"T4": SimpleNamespace(name="T4", major=7, minor=5), "H100": SimpleNamespace(name="H100", major=9, minor=0)}
    monkeypatch.setattr(torch.cuda, "get_device_properties", found.get)
    assert _triton._why_not_gpu("H100") is None
    assert "compute capability 8.0 or newer, got T4 with 7.5" in _triton._why_not_gpu("T4")
    x = SimpleNamespace(device=SimpleNamespace(type="cuda"))
    monkeypatch.setattr(_triton, "_known_gpu", lambda device: f"no {device.type}")
    assert _triton.why_not_device(x) == "no cuda"
