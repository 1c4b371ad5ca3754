"""Where the Triton kernels cannot run on a GPU's machine, and what is said of it: other kernels serve there."""

from __future__ import annotations

from importlib import metadata
from types import SimpleNamespace

import pytest
import torch

from fastbert.ops import _dispatch, _triton

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


def test_a_gpu_that_is_not_the_current_one(monkeypatch):
    """Whether any GPU will do is asked of the process, the one that a tensor is on of the call: a model on cuda:1 was
    computed by the reference where cuda:0 is an old GPU."""
    found = [SimpleNamespace(name="T4", major=7, minor=5), SimpleNamespace(name="A100", major=8, minor=0)]
    for name, value in {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "current_device": lambda: 0,
        "device_count": lambda: len(found),
        "get_device_properties": lambda device: found[device.index],
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(_triton, "_REASON", None)
    monkeypatch.setattr(_triton, "_INTERPRETING", False)

    def forget() -> None:
        for function in vars(_triton).values():
            if hasattr(function, "cache_clear"):
                function.cache_clear()

    def serving(number: int) -> str | None:
        x = SimpleNamespace(device=torch.device("cuda", number), dtype=torch.float16, shape=(8,))
        one = _dispatch._first("gelu", ("triton",), (x, None, "none"), {})
        return one and one.backend

    try:
        forget()
        assert (serving(0), serving(1)) == (None, "triton")
        found.pop()
        forget()
        assert "need a GPU of compute capability 8.0 or newer, got T4" in _triton.why_missing()
    finally:
        forget()


@pytest.mark.parametrize("op", ["gelu", "dropout"])
def test_rows_that_are_too_wide_for_a_grid(monkeypatch, op):
    """A flattened tensor of 2^24 numbers had 65,536 blocks of columns on an axis that ends at 65,535."""
    monkeypatch.setattr(_triton, "why_not_device", lambda x: None)
    accepts = _dispatch._table[op]["triton"].accepts
    rest = {"gelu": (None, "none"), "dropout": (None, None)}[op]
    wide, most = (torch.empty(1, columns, device="meta") for columns in (1 << 24, (1 << 24) - 256))
    assert accepts(most, *rest) is None
    assert accepts(wide, *rest) == "the Triton kernels take rows of at most 16,776,960 columns here, got 16,777,216"
