"""The GPU suite behind run.sh and watch.py: which parts there are, in which order, and what is written."""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import os
import platform
import subprocess
import sys
import time
import traceback
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
import checks
import cuda_kernels
import fp8_kernels
import kernels
import latency
import memory_settings
import settings
import step_profile
import steps
import watch

from fastbert.bench import gpu

REPOSITORY = Path(__file__).resolve().parents[2]


class Results:
    """results.jsonl: one row a measurement; what is there already is not measured again.

    Args:
        directory: of the file.
        budget: seconds after which nothing new is begun.
        dry: a rehearsal, which rows say.
        again: it is the same run in another process: what failed in it, and perhaps ended the one before, stays so.
    """

    def __init__(self, directory: Path, budget: float, dry: bool, again: bool = False) -> None:
        self.directory, self.dry = directory, dry
        self.path = directory / "results.jsonl"
        rows = watch.rows(self.path)
        # Anew: the next row must not be written behind half a one.
        self.path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        self.rows = watch.of_gpu(rows, _gpu())  # a machine of another kind may have been lent the last time
        starts = [at for at, row in enumerate(self.rows) if row["name"].startswith("environment")]
        of_this_run = self.rows[starts[-1] :] if again and starts else []
        self._done = {row["name"] for row in self.rows if "error" not in row} | {row["name"] for row in of_this_run}
        self._deadline = time.monotonic() + budget
        self.left_out: list[str] = []

    def measure(self, name: str, function, *args) -> None:
        """Runs one measurement and keeps its figures, or the reason why there are none."""
        if name in self._done:
            return
        if time.monotonic() > self._deadline:
            self.left_out.append(name)
        else:
            self.always(name, function, *args)

    def always(self, name: str, function, *args) -> None:
        """`measure` without a look at the clock or at what is there."""
        began = time.time()
        (self.directory / watch.BEGUN).write_text(json.dumps({"name": name, "since": began}))
        try:
            row = function(*args)
            if torch.cuda.is_available():
                torch.cuda.synchronize()  # what a kernel of it did wrong is told here, if not before
        except Exception as error:  # a peer that fails must not cost the measurements after it
            traceback.print_exc()
            row = {"error": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:300]}
        row = {"name": name, **row, **self._shares(row), "took": round(time.time() - began, 1)}
        self.rows.append(row)
        with open(self.path, "a") as file:
            file.write(json.dumps(row) + "\n")
        (self.directory / watch.BEGUN).unlink()
        print(json.dumps(row), flush=True)
        if "error" in row and _is_lost():
            os._exit(watch.LOST)  # an orderly end would ask the device too
        # What refers to itself would lie in memory under what is measured next.
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _shares(self, row: dict) -> dict:
        """Figures as shares of the two measured ceilings."""
        ceilings = next((r for r in self.rows if r["name"] == "ceilings" and "error" not in r), None)
        if ceilings is None:
            return {}
        if "MFU" in row:
            return {"of product": row["TFLOP/s"] / ceilings["TFLOP/s"]}
        if "forward TFLOP/s" in row:
            return {"of ceiling": row["forward TFLOP/s"] / ceilings["TFLOP/s"]}
        return {"of ceiling": row["forward GB/s"] / ceilings["copy GB/s"]} if "forward GB/s" in row else {}

    def publish(self) -> list[Path]:
        """Writes the dated document and its table, of a run on a GPU into the repository too."""
        latest = {row["name"]: row for row in self.rows}  # what failed and was measured again counts once
        paths = [*gpu.write(list(latest.values()), self.directory)]
        if not self.dry:
            paths += gpu.write(list(latest.values()), REPOSITORY / "benchmarks" / "results")
        return paths


def _gpu() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "none"


def _is_lost() -> bool:
    """Whether this process can do nothing more on the device, as after a kernel that read where it must not."""
    try:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


def environment(dry: bool, lengths: str) -> dict:
    from importlib import metadata

    def output(*command: str) -> str:
        try:
            done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY)
        except OSError as error:
            return str(error)
        return done.stdout.strip() or done.stderr.strip()

    def version(name: str) -> str | None:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            return None

    on_gpu = torch.cuda.is_available()
    query = "--query-gpu=driver_version,clocks.sm,clocks.mem,power.limit"
    from fastbert import _native

    return {
        "date": datetime.date.today().isoformat(),
        "commit": os.environ.get("FASTBERT_COMMIT") or output("git", "rev-parse", "HEAD"),
        "gpu": _gpu(),
        "driver, clocks": output("nvidia-smi", query, "--format=csv,noheader") if on_gpu else "",
        "torch": torch.__version__,
        "triton": version("triton"),
        "transformers": version("transformers"),
        "flash_attn": version("flash_attn"),
        "python": platform.python_version(),
        "extension": _native.why_missing() or "built",
        "lengths": lengths,
        "dry run": dry,
    }


def parts(results: Results, histogram, dry: bool) -> dict:
    """The parts by name, in the order in which they run: what a killed run would miss most comes first."""

    def correctness() -> None:
        results.measure("check kernels", checks.kernel_tests, dry)
        results.measure("check captured step", checks.step_tests, dry)
        results.measure("check commands", checks.command_tests, dry)
        results.measure("check repeats", checks.repeats, dry)
        results.measure("check unwritten memory", checks.unwritten_memory, dry)
        results.measure("check optimisers", checks.optimizer_tests, dry)

    def of_training(systems: tuple[str, ...]) -> None:
        for model, workload in steps.TRAINING:
            for system in systems:
                name = f"training {model} {workload} {system}"
                results.measure(name, steps.training, model, workload, system, histogram, dry)

    def of_finetuning() -> None:
        for system in steps.FINETUNING:
            results.measure(f"finetuning base {system}", steps.finetuning, system, dry)

    def of_profiles() -> None:
        for model, workload, system in step_profile.STEPS:
            name = f"profile {model} {workload} {system}"
            results.measure(name, step_profile.measure, model, workload, system, histogram, dry)

    def inference() -> None:
        for model in ("base", "large"):
            for workload in ("128", "512", "mix"):
                for system in steps.INFERENCE:
                    name = f"inference {model} {workload} {system}"
                    results.measure(name, steps.inference, model, workload, system, histogram, dry)

    def of_latency() -> None:
        for workload in latency.LENGTHS:
            for system in latency.SYSTEMS:
                results.measure(f"latency base {workload} {system}", latency.latency, "base", workload, system, dry)

    def of_kernels() -> None:
        for name, function in kernels.measurements(dry):
            results.measure(f"kernel {name}", function)
        for name, function in fp8_kernels.measurements(dry):
            results.measure(f"kernel {name}", function)
        for name, function in cuda_kernels.measurements(dry):  # record.py chooses by these
            results.measure(name, function)

    def sanitizer() -> None:
        for tool in ("memcheck", "racecheck"):
            results.measure(f"check compute-sanitizer {tool}", checks.sanitizer, tool, dry)

    def of_settings() -> None:
        for name, function in settings.measurements(dry):
            results.measure(f"setting {name}", function)

    def of_memory() -> None:
        for name, function in memory_settings.measurements(dry):
            results.measure(f"setting {name}", function)

    return {
        "ceilings": lambda: results.measure("ceilings", kernels.ceilings, dry),
        "training": lambda: of_training(steps.SYSTEMS[:2]),
        "finetuning": of_finetuning,
        "profile": of_profiles,
        "checks": correctness,
        "kernels": of_kernels,
        "peers": lambda: of_training(steps.SYSTEMS[2:]),
        "latency": of_latency,
        "inference": inference,
        "sanitizer": sanitizer,
        "settings": of_settings,
        "memory": of_memory,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", default="", help="parts, with commas between them")
    parser.add_argument("--budget", type=float, default=470, help="seconds after which nothing new is begun")
    parser.add_argument("--spent", type=float, default=0, help="seconds of the budget that are gone already")
    parser.add_argument("--again", action="store_true", help="the process before was lost (watch.py); go on without "
                        "what failed in this run")  # fmt: skip
    parser.add_argument("--lengths", type=Path, default=REPOSITORY / "shared/data/lengths/wikipedia_512.csv",
                        help="CSV of length,sequences for the mix; else a stated stand-in")  # fmt: skip
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="every path at toy sizes, without a GPU on the CPU, into OUT/rehearsal; figures mean nothing",
    )
    options = parser.parse_args()
    if not options.dry_run and not torch.cuda.is_available():
        sys.exit("the GPU suite needs a CUDA device, torch finds none; --dry-run rehearses it without one")
    if options.dry_run:
        torch.set_num_threads(1)
        # Its rows must never stand in for measured ones.
        options.out /= "rehearsal"
    options.out.mkdir(parents=True, exist_ok=True)
    results = Results(options.out, options.budget - options.spent, options.dry_run, options.again)
    histogram, source = steps.mix_of_lengths(options.lengths)
    print(f"lengths of the mix: {source}", flush=True)
    known = parts(results, histogram, options.dry_run)
    wanted = options.only.split(",") if options.only else list(known)
    unknown = set(wanted) - set(known)
    if unknown:
        sys.exit(f"--only knows {', '.join(known)}; got {', '.join(sorted(unknown))}")
    if not options.again:
        now = datetime.datetime.now().isoformat(timespec="seconds")
        results.always(f"environment {now}", environment, options.dry_run, source)
    paths = []
    for name, run in known.items():
        if name in wanted:
            run()
            paths = results.publish()
    for path in (results.path, *paths):
        print(path)
    if results.left_out:
        print(
            f"out of time before {len(results.left_out)} measurements, the first: {results.left_out[0]}; run it again"
        )


if __name__ == "__main__":
    main()
