"""Where a training step's time on the GPU goes: every kernel of fastbert's captured step, by torch's profiler."""

from __future__ import annotations

import time

import numpy as np
import torch
from kernels import where
from steps import training_step
from torch.profiler import ProfilerActivity, profile

# Whose sum the rest is to be held against `benchmarks/gpu_step_table.py`.
STEPS = [
    ("base", "128", "fastbert"),
    ("base", "512", "fastbert"),
    ("large", "128", "fastbert"),
    ("large", "mix", "fastbert"),
    ("large", "128", "fastbert fp8"),
]
REPLAYS = 3


def measure(model: str, workload: str, system: str, histogram: np.ndarray, dry: bool) -> dict:
    """Milliseconds and launches of each kernel in a step, the longest first, and what the device idles between them."""
    device, _ = where(dry)
    step = training_step(model, workload, system, histogram, dry).run
    for _ in range(1 if dry else 4):
        step()
    replays = 1 if dry else REPLAYS
    on_gpu = device == "cuda" and torch.cuda.is_available()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    if on_gpu:
        torch.cuda.synchronize()
    with profile(activities=activities) as profiled:
        began = time.perf_counter()
        for _ in range(replays):
            step()
        if on_gpu:
            torch.cuda.synchronize()
        wall = (time.perf_counter() - began) / replays
    times: dict[str, list[float]] = {}
    for event in profiled.events():
        if on_gpu and event.device_type != torch.autograd.DeviceType.CUDA:
            continue
        entry = times.setdefault(event.name[:120], [0.0, 0])
        entry[0] += (event.device_time_total if on_gpu else event.self_cpu_time_total) / 1e3 / replays
        entry[1] += 1 / replays
    kernels = sorted(times.items(), key=lambda item: -item[1][0])
    busy = sum(taken for taken, _ in times.values())
    return {
        "ms": 1e3 * wall,
        "busy ms": busy,
        "launches": round(sum(count for _, count in times.values())),
        "kernels": [[name, round(taken, 4), round(count, 2)] for name, (taken, count) in kernels],
    }
