"""Runs the suite in a process of its own, and in another where that is lost: a kernel that reads where it must not ends
all work of its process on the device, one that never ends would take all the time there is, and a library may crash.

    python benchmarks/gpu/watch.py OUTDIR [the suite's options]

What was under way then is a row with the reason, and is not tried again before the next call.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

SUITE = Path(__file__).with_name("suite.py")
BEGUN = "begun.json"  # in the directory of the results: what is being measured, and since when
LOST = 75  # the suite's exit status where its process can do nothing more on the device
LONGEST = 240.0  # seconds for one measurement
BEYOND = 60.0  # seconds that the last one may take beyond the budget


def begun(directory: Path) -> dict | None:
    """What is being measured: its name and since when, by the clock."""
    try:
        return json.loads((directory / BEGUN).read_text())
    except (OSError, ValueError):
        return None


def rows(path: Path) -> list[dict]:
    """Those of results.jsonl; a killed run may have left half of one."""
    found = []
    for line in path.read_text().splitlines() if path.exists() else []:
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return found


def of_gpu(rows: list[dict], gpu: str) -> list[dict]:
    """Those that were measured on it: what says where a run is comes before its other rows."""
    found, where = [], gpu
    for row in rows:
        if row["name"].startswith("environment"):
            where = row.get("gpu", gpu)
        if where == gpu:
            found.append(row)
    return found


def _wait(child: subprocess.Popen, directory: Path, end: float, longest: float) -> str:
    """Until it has ended or takes too long; which of them, in words."""
    while True:
        try:
            status = child.wait(timeout=1)
        except subprocess.TimeoutExpired:
            now = begun(directory)
            since = time.time() - now["since"] if now else 0.0
            if since < longest and time.monotonic() < end:
                continue
            return f"not done after {since:.0f} s"
        return f"the process ended with {signal.Signals(-status).name if status < 0 else f'status {status}'}"


def _end(child: subprocess.Popen) -> None:
    """Of it and of all that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _add(path: Path, row: dict) -> None:
    torn = path.exists() and not path.read_bytes().endswith(b"\n")
    with open(path, "a") as file:
        file.write("\n" * torn + json.dumps(row) + "\n")


def run(arguments: list[str], directory: Path, seconds: float, spent: float, longest: float) -> int:
    """The suite with these arguments until it has nothing left to do; its exit status.

    Args:
        directory: where the suite writes.
        seconds, spent: the budget, and what of it is gone.
        longest: seconds for one measurement.
    """
    began, again = time.monotonic() - spent, []
    while True:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / BEGUN).unlink(missing_ok=True)
        gone = time.monotonic() - began
        command = [sys.executable, str(SUITE), *arguments, "--spent", f"{gone:.0f}", *again]
        # Once the time is over what is left to do is to write the tables.
        end = began + max(seconds, gone) + BEYOND
        child = subprocess.Popen(command, start_new_session=True)
        try:
            why = _wait(child, directory, end, longest)
        finally:
            _end(child)
        now = begun(directory)
        if now is not None:
            _add(directory / "results.jsonl", {"name": now["name"], "error": why})
        elif child.returncode != LOST:
            return child.returncode
        print(f"{why}; going on in another", flush=True)
        again = ["--again"]


def main() -> int:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("out", type=Path)
    parser.add_argument("--budget", type=float, default=470)
    parser.add_argument("--spent", type=float, default=0)
    parser.add_argument("--dry-run", action="store_true")
    options, _ = parser.parse_known_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    directory = options.out / "rehearsal" if options.dry_run else options.out
    # A rehearsal may be in an interpreter that takes minutes.
    longest = max(LONGEST, options.budget) if options.dry_run else LONGEST
    return run(sys.argv[1:], directory, options.budget, options.spent, longest)


if __name__ == "__main__":
    sys.exit(main())
