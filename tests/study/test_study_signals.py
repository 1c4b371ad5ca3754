"""A signal ends a study whose processes have only just been started: they do not do their jobs to the end first."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pretraining_runs
import pytest
import study_runs


def workers(process: subprocess.Popen) -> list[int]:
    """The processes that do a study's jobs."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    commands = {child: Path(f"/proc/{child}/cmdline") for child in children}
    return [int(child) for child, path in commands.items() if path.exists() and b"spawn_main" in path.read_bytes()]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc tells of the processes")
def test_a_signal_ends_processes_that_have_only_just_been_started(tmp_path):
    place = study_runs.write_files(tmp_path / "files")
    (place / "endless.yaml").write_text(study_runs.TINY.replace("steps: 12", "steps: 1000000"))
    command = [sys.executable, "-m", "fastbert", "study", str(place / "endless.yaml"), "--jobs", "2"]
    command += ["--data-dir", str(place), "--corpus", str(place / "corpus.txt"), "--out", str(tmp_path / "out")]
    child = subprocess.Popen(command, env=pretraining_runs.environment(), stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 120
        while len(workers(child)) < 2 and time.monotonic() < deadline:
            time.sleep(0.001)
        child.send_signal(signal.SIGINT)  # to this one alone, while those import torch
        told = child.communicate(timeout=90)[1]
    finally:
        child.kill()
        child.communicate()
    assert child.returncode == 130
    assert "4 pre-trainings and 6 fine-tunings are left; the same command goes on from here" in told
