"""BERT's two phases with LAMB under ZeRO, left alone and killed: both runs must come to the same curve.

Makes a vocabulary and shards of a corpus, then trains twice by `fastbert pretrain --zero`: once alone, once ended by
SIGKILL of all its processes as often as --kills says, the last time within the second phase, and resumed by --resume
auto. Every row of both metrics.jsonl (losses, accuracies, gradient norms and rates of both phases) and every tensor of
the last model must be equal to the bit; the exit status is 1 where one is not. Prints the curve, and a picture of both
goes to OUT.

    python benchmarks/phases_under_zero.py books.txt --out RUNS                      # 300 steps: about 10 minutes
    python benchmarks/phases_under_zero.py books.txt --out RUNS --steps 20 --model 2x64 --save-every 3    # a rehearsal
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from pathlib import Path

import ranks

RECIPE = """\
model: {model}
init: small
optimizer: lamb
betas: [0.9, 0.98]
clip: 1.0
token_budget: 2048
eval_every: {eval_every}
eval_tokens: 32768
save_every: {save_every}
log_every: {log_every}
phases:
  - name: 128 tokens
    steps: {first}
    max_seqlen: 128
    batch_tokens: 8192
    lr: {lr}
    schedule: poly
    power: 0.5
    warmup: 0.1
  - name: 512 tokens
    steps: {second}
    max_seqlen: 512
    batch_tokens: 8192
    lr: {lower}
    schedule: poly
    power: 0.5
    warmup: 0.1
"""
# What a clock or the machine decides; all else in a row is a function of the options.
MEASURED = {"tokens_per_second", "executed_tokens_per_second", "mfu", "seconds", "memory_mib"}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", default="4x256")
    parser.add_argument("--zero", type=int, default=2)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--steps", type=int, default=300, help="of both phases; a tenth is the second's")
    parser.add_argument("--save-every", type=int, default=20)
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--vocabulary", type=int, default=8000)
    return parser.parse_args()


def fastbert(*arguments: object) -> None:
    subprocess.run([sys.executable, "-m", "fastbert", *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)


class Run:
    """All processes of a run, as a launcher would start them; without one, whose death they would outlive."""

    def __init__(self, options: argparse.Namespace, data: Path, recipe: Path, run: Path) -> None:
        command = ["pretrain", "--config", recipe, "--data", data, "--out", run, "--zero", options.zero]
        self.run = run
        self.log = run.parent / f"{run.name}.log"
        with open(self.log, "a") as log:
            self.processes = [
                subprocess.Popen(
                    [sys.executable, "-m", "fastbert", *map(str, command), "--resume", "auto"],
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=environment,
                )
                for environment in ranks.environments(options.processes, threads=1)
            ]

    def finish(self) -> None:
        codes = [process.wait() for process in self.processes]
        if any(codes):
            raise SystemExit(f"{self.run}: exit statuses {codes}; see {self.log}")

    def kill_at(self, step: int) -> int:
        """SIGKILL for all processes once that step is in the log; returns the last step that was logged."""
        while max((row["step"] for row in rows(self.run)), default=0) < step:
            if any(process.poll() is not None for process in self.processes):
                raise SystemExit(f"{self.run}: ended before step {step}; see {self.log}")
            time.sleep(0.05)
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()
        return max(row["step"] for row in rows(self.run))


def rows(run: Path) -> list[dict]:
    path = run / "metrics.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def compare(whole: Path, cut: Path) -> list[str]:
    """What differs between two runs; empty where they are equal to the bit."""
    from safetensors.torch import load_file

    first, second = (
        [{k: v for k, v in row.items() if k not in MEASURED and not k.endswith("_seconds")} for row in rows(run)]
        for run in (whole, cut)
    )
    found = [f"{len(first)} rows against {len(second)}"] if len(first) != len(second) else []
    found += [f"step {a['step']}: {a} against {b}" for a, b in zip(first, second, strict=False) if a != b]
    ours, theirs = (load_file(run / "model" / "model.safetensors") for run in (whole, cut))
    return found + [f"model: {name}" for name in ours if not ours[name].equal(theirs[name])]


def draw(whole: Path, cut: Path, killed: list[int], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.6), layout="constrained")
    axis = figure.subplots()
    for run, style, label in (
        (whole, {"linewidth": 4, "color": "#8fb8e8"}, "left alone"),
        (cut, {}, "killed, resumed"),
    ):
        curve = [(row["step"], row["mlm_loss"]) for row in rows(run) if row["kind"] == "train"]
        axis.plot(*zip(*curve, strict=True), **{"color": "#4b2e83", "linewidth": 1, **style}, label=label)
    for step in killed:
        axis.axvline(step, color="#bbbbbb", linestyle=":", linewidth=1)
    axis.set_xlabel("step (dotted: SIGKILL of all processes)")
    axis.set_ylabel("masked-LM cross-entropy (nats)")
    axis.legend(frameon=False)
    figure.savefig(path, dpi=150)


def main() -> int:
    options = parse()
    out = options.out
    out.mkdir(parents=True)
    data, recipe, second = out / "data", out / "recipe.yaml", max(options.steps // 10, 1)
    fastbert("vocab", options.corpus, "--size", options.vocabulary, "--out", out / "vocab.txt")
    fastbert("prepare", options.corpus, "--vocab", out / "vocab.txt", "--heldout", 0.02, "--out", data)
    every = {"eval_every": max(options.steps // 6, 1), "log_every": 1, "save_every": options.save_every}
    rates = {"lr": options.lr, "lower": options.lr * 2 / 3}
    recipe.write_text(RECIPE.format(model=options.model, first=options.steps - second, second=second, **rates, **every))
    whole, cut = out / "whole", out / "cut"
    Run(options, data, recipe, whole).finish()
    # The first in the first phase, the last in the second, each between two checkpoints.
    draws = random.Random(0)
    asked = sorted(draws.randrange(2, options.steps - second) for _ in range(options.kills - 1))
    killed = []
    for step in [*asked, options.steps - second // 2]:
        killed.append(Run(options, data, recipe, cut).kill_at(step))
        print(f"killed after step {killed[-1]}", flush=True)
    Run(options, data, recipe, cut).finish()
    differences = compare(whole, cut)
    draw(whole, cut, killed, out / "phases.png")
    for row in rows(whole):
        if row["kind"] == "heldout" or row["step"] % every["eval_every"] == 0:
            print({name: row[name] for name in ("step", "kind", "mlm_loss", "mlm_acc", "nsp_acc") if name in row})
    print(f"{len(rows(whole))} rows and the last model: " + ("equal to the bit" if not differences else "DIFFERENT"))
    print("\n".join(differences[:10]))
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
