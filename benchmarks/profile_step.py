"""Where the time of a training step goes, by operator: the step that `fastbert bench training` measures.

The times are those of torch's profiler, of the clock and not of the processor: run it on an otherwise idle core.

python benchmarks/profile_step.py --model 4x256 --threads 1
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from fastbert.bench import models, workloads
from fastbert.bench.peers.fastbert_ import Training
from fastbert.wording import markdown_table

# Operators by what they are for; the first that a name holds decides.
GROUPS = (
    (
        "dense layers and the head's product",
        ("aten::mm", "aten::addmm", "fastbert::linear", "fastbert_linear", "AddmmBackward", "MmBackward"),
    ),
    ("attention", ("attention",)),
    ("clip and AdamW", ("Optimizer.step", "clip")),
    ("LayerNorm with dropout and residual", ("layer_norm",)),
    ("GELU", ("gelu",)),
    ("cross-entropy", ("cross_entropy",)),
    ("embedding", ("embedding",)),
    ("adding, copying, filling", ("aten::add", "aten::copy_", "aten::fill_", "aten::sum", "aten::zero_")),
)


def group(name: str) -> str:
    return next((title for title, parts in GROUPS if any(part in name for part in parts)), "the rest, Python included")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="4x256")
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--workload", choices=("T1", "T2"), default="T1")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()
    workload = next(w for w in workloads.TRAINING if w.name == options.workload)
    with tempfile.TemporaryDirectory() as directory:
        config = models.make_directory(options.model, Path(directory))
        training = Training(Path(directory), options.dtype, options.threads)
    training.prepare(workloads.make_batch(workload, config.vocab_size))
    for _ in range(3):
        training.step()
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        for _ in range(options.steps):
            training.step()
    times: dict[str, float] = {}
    for event in profiled.key_averages():
        times[group(event.key)] = times.get(group(event.key), 0.0) + event.self_cpu_time_total
    print(f"{options.workload}, {options.model}, {options.dtype}, {options.threads} threads, {options.steps} steps")
    ordered = sorted(times.items(), key=lambda item: -item[1])
    shares = [(title, f"{time / sum(times.values()):.1%}") for title, time in ordered]
    print(*markdown_table(("", "share"), shares, right=[1]), sep="\n")


if __name__ == "__main__":
    main()
