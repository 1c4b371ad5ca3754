"""What the processor is asked at import, and what is set where AMX is announced without its tiles."""

from __future__ import annotations

import logging
import os
import platform
import subprocess
import sys
import time

import pytest
import torch

import fastbert
from fastbert import _native, hardware

HOLLOW = {(7, 0): (0, 0, 0, 1 << 24), (0x1D, 1): (0, 0, 0, 0)}
HEALTHY = {(7, 0): (0, 0, 0, 1 << 24), (0x1D, 1): (0x04002000, 0x00080040, 16, 0)}  # palette 1: 8 tiles, 64 x 16
WITHOUT = {(7, 0): (0, 0, 0, 0), (0x1D, 1): (0, 0, 0, 0)}


def _machine(registers):
    return lambda leaf, subleaf: registers.get((leaf, subleaf)) if registers else None


@pytest.fixture(autouse=True)
def _variable_unset(monkeypatch):
    monkeypatch.setenv(hardware.ONEDNN_VARIABLE, "")  # or else what a test sets there would stay
    monkeypatch.delenv(hardware.ONEDNN_VARIABLE)


def test_hollow_amx_is_capped_and_said(caplog):
    with caplog.at_level(logging.INFO, "fastbert"):
        said = hardware.cap_onednn(_machine(HOLLOW))
    assert os.environ[hardware.ONEDNN_VARIABLE] == "AVX512_CORE_FP16"
    assert "AMX without its tiles" in said
    # torch is imported in this process, so its first product may lie behind: that is a warning.
    assert [record.levelname for record in caplog.records] == ["WARNING"]


@pytest.mark.parametrize("registers", [HEALTHY, WITHOUT, None])
def test_other_machines_are_left_alone(registers):
    assert hardware.cap_onednn(_machine(registers)) is None
    assert hardware.ONEDNN_VARIABLE not in os.environ


def test_the_users_choice_stands(monkeypatch):
    monkeypatch.setenv(hardware.ONEDNN_VARIABLE, "AVX2")
    assert "AVX2" in hardware.cap_onednn(_machine(HOLLOW))
    assert os.environ[hardware.ONEDNN_VARIABLE] == "AVX2"


def test_what_the_processor_says_agrees_with_linux():
    if hardware.cpuid(0, 0) is None or not os.path.exists("/proc/cpuinfo"):
        pytest.skip("no CPUID or no /proc/cpuinfo here")
    with open("/proc/cpuinfo") as file:
        lines = file.read().splitlines()
    flags = next((line.split() for line in lines if line.startswith("flags")), [])
    assert hardware.is_amd() == any(line.split()[-1] == "AuthenticAMD" for line in lines if "vendor_id" in line)
    # Linux hides AMX where its tiles are missing, which is the reason for asking the processor itself.
    for name in ("avx", "fma", "avx2", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "avx_vnni"):
        assert (name in hardware.features()) == (name in flags), name


def test_levels_agree_with_the_extension():
    if _native.why_missing():
        pytest.skip(_native.why_missing())
    assert hardware.isa() == _native.extension().supported_isas()[-1]


AVX2 = ("fma", "avx2")
AVX512 = (*AVX2, "avx512f", "avx512dq", "avx512bw", "avx512vl")


@pytest.mark.parametrize(
    ("features", "state", "best"),
    [
        (AVX2, 0x7, "avx2"),  # Haswell to Comet Lake, Zen 1 to 3
        ((*AVX2, "avx_vnni"), 0x7, "avx2_vnni"),  # Alder Lake and later
        (AVX512, 0xE7, "avx512"),  # Skylake-X
        ((*AVX512, "avx512_vnni"), 0xE7, "avx512_vnni"),  # Cascade Lake, Ice Lake, Tiger Lake
        ((*AVX512, "avx512_vnni", "avx_vnni"), 0x7, "avx2_vnni"),  # the wide registers are not saved
        ((*AVX512, "avx512_vnni", "avx_vnni", "avx512_bf16"), 0xE7, "avx512_bf16"),  # Sapphire Rapids without tiles
    ],
)
def test_which_processors_are_given_which_level(monkeypatch, features, state, best):
    monkeypatch.setattr(hardware, "features", lambda: features)
    monkeypatch.setattr(hardware, "saved_state", lambda: state)
    monkeypatch.setattr(hardware, "is_amd", lambda: False)
    assert hardware.isa() == best


@pytest.mark.parametrize(
    ("version", "best"),
    [
        (0x00A10F11, "avx512_winograd"),  # EPYC 9004
        (0x00A60F12, "avx512_winograd"),  # Ryzen 7000
        (0x00B00F21, "avx512_winograd_registers"),  # EPYC 9005
        (0x00B10F10, "avx512_winograd_registers"),
        (0x00B40F40, "avx512_winograd_registers"),  # Ryzen 9000
        (0x00B20F40, "avx512_bf16_pairs"),  # Ryzen AI 300, whose arithmetic is 256 bits wide
    ],
)
def test_which_of_amds_are_given_which_level(monkeypatch, version, best):
    """By leaf 1's eax: family and model with their extensions."""
    monkeypatch.setattr(hardware, "features", lambda: (*AVX512, "avx512_vnni", "avx512_bf16"))
    monkeypatch.setattr(hardware, "saved_state", lambda: 0xE7)
    monkeypatch.setattr(hardware, "is_amd", lambda: True)
    monkeypatch.setattr(hardware, "cpuid", lambda leaf, subleaf: (version, 0, 0, 0))
    assert hardware.isa() == best


@pytest.mark.parametrize(
    ("system", "capabilities", "best"),
    [
        ("linux", 0x8FF, "scalar"),
        ("linux", 0x1008FF, "neon_dot"),
        ("darwin", 0, "neon_dot"),
        ("freebsd14", 0, "scalar"),
    ],
)
def test_arm_is_asked_for_dot_products(monkeypatch, system, capabilities, best):
    monkeypatch.setattr(hardware.platform, "machine", lambda: "arm64" if system == "darwin" else "aarch64")
    monkeypatch.setattr(hardware.sys, "platform", system)
    monkeypatch.setattr(hardware, "_linux_capabilities", lambda: capabilities)
    monkeypatch.setattr(hardware, "cpuid", lambda leaf, subleaf: None)
    for cached in (hardware.features, hardware.saved_state):
        monkeypatch.setattr(hardware, cached.__name__, cached.__wrapped__)
    assert hardware.isa() == best


def test_asking_is_quick():
    hardware.amx_is_hollow()
    best = min(_seconds() for _ in range(5))
    assert best < 0.001


def _seconds() -> float:
    hardware.cpuid.cache_clear()
    start = time.perf_counter()
    hardware.amx_is_hollow()
    return time.perf_counter() - start


def test_bfloat16_products_do_not_crash(tmp_path):
    code = "import fastbert, torch; x = torch.ones(64, 64).bfloat16(); print(float((x @ x).sum()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=_root(), check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "262144.0"


def _root():
    """A directory from which a child imports the same fastbert as this process."""
    return os.path.dirname(os.path.dirname(fastbert.__file__))


def test_environment_says_what_serves_each_op():
    found = fastbert.environment()
    assert set(found) == {"fastbert", "python", "torch", "hardware", "libraries", "ops", "notes"}
    # PyPI's wheel calls itself 2.15.0+cu132 and is listed as 2.15.0.
    assert found["torch"] == torch.__version__
    assert found["libraries"]["torch"] in (torch.__version__, torch.__version__.partition("+")[0])
    rows = {row["op"]: row for row in found["ops"]}
    assert rows["gelu"]["backend"] == ("reference" if _native.why_missing() else "cpu")
    assert rows["gelu"]["why_not"]["cuda"]
    # A second call: importing a module must not have taken the name's place.
    assert fastbert.environment()["hardware"]["cores"] == len(os.sched_getaffinity(0))


_FREED = """
import ctypes
from fastbert import hardware

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

c = ctypes.CDLL(None)
c.malloc.restype, c.malloc.argtypes, c.free.argtypes = ctypes.c_void_p, (ctypes.c_size_t,), (ctypes.c_void_p,)
blocks = [c.malloc(1 << 16) for _ in range(1000)]
for block in blocks:
    ctypes.memset(block, 1, 1 << 16)
for block in blocks[:-1]:  # the last of them keeps the heap from shrinking
    c.free(block)
before = resident()
print(hardware.give_back_freed_memory(), before - resident() > 30_000_000)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_freed_memory_is_given_back():
    run = subprocess.run([sys.executable, "-c", _FREED], capture_output=True, text=True, timeout=120)
    if platform.libc_ver()[0] == "glibc":
        assert run.stdout.split() == ["True", "True"], run.stderr
    else:
        assert run.stdout.split()[:1] == ["False"], run.stderr
