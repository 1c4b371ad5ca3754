"""What the processor can do, and what must be set before torch uses it.

Some cloud machines announce AMX (CPUID leaf 7) but leave the leaf that describes its tiles (0x1D) empty. oneDNN, inside
torch, then loads an empty tile palette, and the process dies of an illegal instruction in its first bfloat16 product.
Linux's own flags hide AMX on such machines, so the processor itself is asked, by a few bytes of machine code: this must
work without a compiler, and before torch computes anything.
"""

from __future__ import annotations

import functools
import logging
import math
import os
import platform
import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

ONEDNN_VARIABLE = "ONEDNN_MAX_CPU_ISA"
ONEDNN_CAP = "AVX512_CORE_FP16"  # the best level without AMX

MOST_PROCESSES = 4096
"""An upper bound of the processes, or of the threads of one, that can be asked for; more than any machine has use for.
Systems and torch either accept far larger numbers or fail with obscure messages."""

_log = logging.getLogger("fastbert")

# void cpuid(uint32_t leaf, uint32_t subleaf, uint32_t out[4]) and uint64_t xgetbv(void), System V calling convention.
_CPUID_CODE = bytes.fromhex("53 4989d0 89f8 89f1 0fa2 418900 41895804 41894808 4189500c 5b c3")
_XGETBV_CODE = bytes.fromhex("31c9 0f01d0 48c1e220 4809d0 c3")

Cpuid = Callable[[int, int], "tuple[int, int, int, int] | None"]

# Name -> (leaf, subleaf, register 0..3 = eax..edx, bit): Intel SDM volume 2A, table 3-8.
_FEATURES = {
    "avx": (1, 0, 2, 28),
    "fma": (1, 0, 2, 12),
    "avx2": (7, 0, 1, 5),
    "avx512f": (7, 0, 1, 16),
    "avx512dq": (7, 0, 1, 17),
    "avx512bw": (7, 0, 1, 30),
    "avx512vl": (7, 0, 1, 31),
    "avx_vnni": (7, 1, 0, 4),
    "avx512_vnni": (7, 0, 2, 11),
    "avx512_bf16": (7, 1, 0, 5),
    "avx512_fp16": (7, 0, 3, 23),
    "amx_bf16": (7, 0, 3, 22),
    "amx_tile": (7, 0, 3, 24),
    "amx_int8": (7, 0, 3, 25),
}

_AMD = tuple(int.from_bytes(part, "little") for part in (b"Auth", b"cAMD", b"enti"))  # in ebx, ecx and edx of leaf 0


def _is_x86_64() -> bool:
    return platform.machine().lower() in ("x86_64", "amd64") and sys.maxsize > 2**32


def _run_machine_code(code: bytes, restype, argtypes: tuple, *arguments):
    """Calls machine code, in a page of its own. Raises OSError if the system forbids executable pages."""
    import ctypes
    import mmap

    with mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC) as page:
        page.write(code)
        first = ctypes.c_char.from_buffer(page)
        try:
            return ctypes.CFUNCTYPE(restype, *argtypes)(ctypes.addressof(first))(*arguments)
        finally:
            del first


@functools.cache
def cpuid(leaf: int, subleaf: int) -> tuple[int, int, int, int] | None:
    """(eax, ebx, ecx, edx) of the CPUID instruction; zeros above the highest leaf; None if it cannot be run."""
    if os.name != "posix" or not _is_x86_64():
        return None
    if leaf:
        highest = cpuid(0, 0)
        if highest is None:
            return None
        # Above the highest leaf, the instruction returns the registers of another leaf.
        if leaf > highest[0]:
            return 0, 0, 0, 0
    import ctypes

    out = (ctypes.c_uint32 * 4)()
    argtypes = (ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p)
    try:
        _run_machine_code(_CPUID_CODE, None, argtypes, leaf, subleaf, ctypes.addressof(out))
    except OSError:
        return None
    return tuple(out)


def _bit(registers: tuple[int, ...] | None, register: int, bit: int) -> bool:
    return registers is not None and bool(registers[register] >> bit & 1)


def _linux_capabilities() -> int:
    """Linux's AT_HWCAP: on ARM, a bit for each instruction set that a process may use."""
    import ctypes

    at_hwcap = 16  # linux/auxvec.h
    try:
        return ctypes.CDLL(None).getauxval(at_hwcap)
    except (AttributeError, OSError):
        return 0


def _arm_features() -> tuple[str, ...]:
    if platform.machine().lower() not in ("aarch64", "arm64"):
        return ()
    # Every ARM Mac has dot products; in Linux's AT_HWCAP they are bit 20 (asm/hwcap.h).
    dot_products = sys.platform == "darwin" or (sys.platform == "linux" and bool(_linux_capabilities() >> 20 & 1))
    return ("asimddp",) if dot_products else ()


@functools.cache
def features() -> tuple[str, ...]:
    """The names in `_FEATURES` (or on ARM, dot products) that the processor announces."""
    of_x86 = tuple(name for name, (leaf, sub, reg, bit) in _FEATURES.items() if _bit(cpuid(leaf, sub), reg, bit))
    return of_x86 + _arm_features()


@functools.cache
def saved_state() -> int:
    """XCR0: which registers the operating system saves; 0 if it cannot be read."""
    if not _bit(cpuid(1, 0), 2, 27):
        return 0
    import ctypes

    return _run_machine_code(_XGETBV_CODE, ctypes.c_uint64, ())


def _may_use_tiles() -> bool:
    """Asks Linux for permission to use AMX's tile registers, as csrc/isa.cpp does; it holds for the whole process."""
    import ctypes

    arch_prctl, request_permission, tile_data = 158, 0x1023, 18  # asm/unistd_64.h, asm/prctl.h
    try:
        return ctypes.CDLL(None).syscall(arch_prctl, request_permission, tile_data) == 0
    except (AttributeError, OSError):
        return False


@functools.cache
def is_amd() -> bool:
    """Whether the processor's vendor is AMD."""
    return (cpuid(0, 0) or ())[1:] == _AMD


def _best_of_bf16() -> str:
    """The level of a processor with AVX-512 and BF16 but without AMX, by its vendor and, for AMD, family and model."""
    if not is_amd():
        return "avx512_bf16"
    version = (cpuid(1, 0) or (0,))[0]
    family, models = (version >> 8 & 0xF) + (version >> 20 & 0xFF), version >> 16 & 0xF
    if family == 25:  # Zen 4
        return "avx512_winograd"
    if family == 26 and models in (0, 1, 4):  # Zen 5 in servers and desktops, whose arithmetic is 512 bits wide
        return "avx512_winograd_registers"
    return "avx512_bf16_pairs"


def isa() -> str:
    """The best level that can run here, as csrc/isa.cpp decides: "scalar", "neon_dot", "avx2", "avx2_vnni", "avx512",
    "avx512_vnni", "avx512_bf16", "avx512_bf16_pairs", "avx512_winograd", "avx512_winograd_registers" or "amx".
    """
    found, state = set(features()), saved_state()
    if not {"avx2", "fma"} <= found or state & 0x6 != 0x6:
        return "neon_dot" if "asimddp" in found else "scalar"
    if not {"avx512f", "avx512dq", "avx512bw", "avx512vl"} <= found or state & 0xE6 != 0xE6:
        return "avx2_vnni" if "avx_vnni" in found else "avx2"
    if "avx512_vnni" not in found:
        return "avx512"
    if "avx512_bf16" not in found:
        return "avx512_vnni"
    tiles = {"amx_tile", "amx_bf16", "amx_int8"} <= found and state & 0x60000 == 0x60000
    if tiles and sys.platform == "linux" and _may_use_tiles():
        return "amx"
    return _best_of_bf16()


def amx_is_hollow(cpuid: Cpuid = cpuid) -> bool:
    """Whether AMX is announced but the leaf with its tiles' sizes is empty: torch then crashes in bfloat16 products."""
    announced = _bit(cpuid(7, 0), 3, 24)
    tiles = cpuid(0x1D, 1)
    return announced and tiles is not None and not any(tiles)


def cap_onednn(cpuid: Cpuid = cpuid) -> str | None:
    """Keeps oneDNN from using AMX where it is hollow (`amx_is_hollow`), by an environment variable, unless that is set.

    Called by ``import fastbert``: worker processes inherit the variable.

    Returns:
        what was done, as a message, or None if there was nothing to do.
    """
    if not amx_is_hollow(cpuid):
        return None
    if ONEDNN_VARIABLE in os.environ:
        return f"this machine announces AMX without its tiles; {ONEDNN_VARIABLE}={os.environ[ONEDNN_VARIABLE]} was set"
    # oneDNN reads the variable at its first product: if that ran before `import fastbert`, it is too late.
    too_late = "torch" in sys.modules
    os.environ[ONEDNN_VARIABLE] = ONEDNN_CAP
    said = (
        f"this machine announces AMX without its tiles, on which bfloat16 products of torch crash: "
        f"set {ONEDNN_VARIABLE}={ONEDNN_CAP}"
    )
    if too_late:
        _log.warning("%s (torch was imported earlier: import fastbert before torch's first product)", said)
    else:
        _log.info("%s", said)
    return said


def processor_name() -> str:
    """The processor's name as the system gives it."""
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def processor_quota(root: str = "/") -> float | None:
    """How many processors' time this process may use in a container with a limit (``docker run --cpus 1.5``), or None
    without one. Such a container still sees all processors of its machine.

    Args:
        root: the directory with proc and sys, which have the limits of Linux's control groups, version 1 or 2.
    """
    limits = []
    for line in _lines(f"{root}/proc/self/cgroup"):
        _, controllers, group = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        mount = f"{root}/sys/fs/cgroup/{'cpu' if controllers else ''}"
        # The limits of the groups above hold too. A container's own group may be the mount's root, under any path.
        parts = [part for part in group.split("/") if part]
        for depth in range(len(parts) + 1):
            place = "/".join([mount, *parts[:depth]])
            if controllers:
                limit = [*_lines(f"{place}/cpu.cfs_quota_us"), *_lines(f"{place}/cpu.cfs_period_us")]
            else:
                limit = [word for words in _lines(f"{place}/cpu.max") for word in words.split()]
            if len(limit) == 2 and all(map(str.isdecimal, limit)) and int(limit[1]):  # not "max" and not -1
                limits.append(int(limit[0]) / int(limit[1]))
    return min(limits, default=None)


def _lines(path: str) -> list[str]:
    try:
        with open(path) as file:
            return file.read().splitlines()
    except OSError:
        return []


def num_cores() -> int:
    """Cores that this process may use: those that it may run on, or fewer by `processor_quota`."""
    quota = processor_quota()
    return _seen_cores() if quota is None else max(min(_seen_cores(), math.ceil(quota)), 1)


def _seen_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def start_no_more_threads_than_cores() -> None:
    """Sets OMP_NUM_THREADS where `processor_quota` leaves fewer cores than torch has threads for, unless it is set.
    Threads wait for each other, so that each would wait for those whose time is used up. Must come before torch is
    imported."""
    siblings = _lines("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list")
    by_torch = _seen_cores() // max(len(re.findall(r"\d+", "".join(siblings))), 1)  # a thread for each physical core
    if num_cores() < by_torch and "torch" not in sys.modules:
        os.environ.setdefault("OMP_NUM_THREADS", str(num_cores()))


def default_device() -> torch.device:
    """The device on which a command computes: the current CUDA device if torch finds one, else the CPU.

    ``CUDA_VISIBLE_DEVICES`` chooses the GPU; set to the empty string, it hides all GPUs.
    """
    import torch

    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def keep_freed_memory() -> bool:
    """Makes glibc's allocator keep what a training step frees for the next step, instead of giving it back.

    Otherwise every large activation is mapped anew and zeroed page by page in each step: 4,600 page faults a step for a
    model of a million parameters, 38 with this; a tenth of the step's time on a virtual machine.

    Returns:
        False if the C library is not glibc.
    """
    import ctypes

    mmap_threshold, trim_threshold = -3, -1  # mallopt's names for them, from malloc.h
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    largest = (1 << 31) - 1
    return bool(mallopt(mmap_threshold, 1 << 30)) and bool(mallopt(trim_threshold, largest))


def give_back_freed_memory() -> bool:
    """Makes glibc's allocator return freed memory to the system, also between blocks that are still in use: after a
    model was quantised, that is up to a fifth of the process's memory.

    Returns:
        False if the C library is not glibc.
    """
    import ctypes

    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return False
    trim(ctypes.c_size_t(0))
    return True


def peak_memory_mib() -> float:
    """The largest resident memory of this process since its program began, in MiB."""
    for line in _lines("/proc/self/status"):
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    import resource

    # Where a process begins with the peak of the one that started it, and macOS counts bytes.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20) if sys.platform == "darwin" else peak / 1024


def gpu_slug(gpu: str) -> str:
    """A GPU's name for files and directories: lower-case letters, digits and hyphens; "none" if it has none of
    these."""
    return re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-") or "none"
