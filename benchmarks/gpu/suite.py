"""The GPU suite behind run.sh: which parts there are, in which order, and what is written."""

from __future__ import annotations

import argparse
import datetime
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
import kernels
import steps

REPOSITORY = Path(__file__).resolve().parents[2]


class Results:
    """results.jsonl: one row a measurement; what is there already is not measured again."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "results.jsonl"
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        self.rows = [json.loads(line) for line in lines]
        self._done = {row["name"] for row in self.rows if "error" not in row}

    def measure(self, name: str, function, *args) -> None:
        """Runs one measurement and keeps its figures, or the reason why there are none."""
        if name in self._done:
            return
        began = time.time()
        try:
            row = function(*args)
        except Exception as error:  # a peer that fails must not cost the measurements after it
            traceback.print_exc()
            row = {"error": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:300]}
        row = {"name": name, **row, "took": round(time.time() - began, 1)}
        self.rows.append(row)
        with open(self.path, "a") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def environment() -> dict:
    import triton

    def output(*command: str) -> str:
        done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY)
        return done.stdout.strip() or done.stderr.strip()

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    query = "--query-gpu=driver_version,clocks.sm,clocks.mem,power.limit"
    return {
        "date": datetime.date.today().isoformat(),
        "commit": os.environ.get("FASTBERT_COMMIT") or output("git", "rev-parse", "HEAD"),
        "gpu": gpu,
        "driver, clocks": output("nvidia-smi", query, "--format=csv,noheader") if gpu != "none" else "",
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": platform.python_version(),
    }


def tests(dry: bool) -> dict:
    """The Triton tests, on the GPU itself (in a dry run: in the interpreter, a few)."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib"]
    command += [str(REPOSITORY / "tests/triton/test_triton_kernels.py"), *(["-k", "dropout_has"] if dry else [])]
    paths = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "tests")])
    variables = {**os.environ, "PYTHONPATH": paths, **({"TRITON_INTERPRET": "1"} if dry else {})}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, cwd=REPOSITORY, timeout=240)
    failed = [line for line in done.stdout.splitlines() if line.startswith("FAILED")]
    return {"summary": done.stdout.strip().splitlines()[-1], "failed": failed, "rc": done.returncode}


def parts(results: Results, options) -> dict:
    """The parts by name, in the order in which they run."""
    dry = options.dry_run
    lengths = steps.read_lengths(options.lengths)

    def training() -> None:
        for model, workload in steps.TRAINING:
            for system in steps.SYSTEMS:
                name = f"training {model} {workload} {system}"
                results.measure(name, steps.training, model, workload, system, lengths, dry)

    def inference() -> None:
        for workload in ("128", "512", "mix"):
            for system in steps.SYSTEMS:
                results.measure(f"inference base {workload} {system}", steps.inference, workload, system, lengths, dry)

    def of_kernels() -> None:
        for name, function in kernels.measurements(dry):
            results.measure(f"kernel {name}", function)

    return {
        "ceilings": lambda: results.measure("ceilings", kernels.ceilings, dry),
        "tests": lambda: results.measure("tests", tests, dry),
        "training": training,
        "kernels": of_kernels,
        "inference": inference,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", default="", help="parts, with commas between them")
    parser.add_argument("--lengths", type=Path, help="CSV of length,sequences for the mix; else a stated stand-in")
    parser.add_argument(
        "--dry-run", action="store_true", help="every path, on the CPU, at toy sizes; figures mean nothing"
    )
    options = parser.parse_args()
    if not options.dry_run and not torch.cuda.is_available():
        sys.exit("the GPU suite needs a CUDA device, torch finds none; --dry-run rehearses it without one")
    results = Results(options.out)
    results.measure(f"environment {datetime.datetime.now().isoformat(timespec='seconds')}", environment)
    known = parts(results, options)
    wanted = options.only.split(",") if options.only else list(known)
    unknown = set(wanted) - set(known)
    if unknown:
        sys.exit(f"--only knows {', '.join(known)}; got {', '.join(sorted(unknown))}")
    for name, run in known.items():
        if name in wanted:
            run()
    print(f"{len(results.rows)} rows in {results.path}")


if __name__ == "__main__":
    main()
