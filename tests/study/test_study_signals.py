"""A signal ends a study whose processes have only just been started: they do not do their jobs to the end first."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
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


LEFT = "4 pre-trainings and 6 fine-tunings are left; the same command goes on from here"


def command(tmp_path: Path, start: list[str]) -> list[str]:
    """A study on two processes whose pre-trainings would take hours."""
    place = study_runs.write_files(tmp_path / "files")
    (place / "endless.yaml").write_text(study_runs.TINY.replace("steps: 12", "steps: 1000000"))
    given = ["study", str(place / "endless.yaml"), "--jobs", "2", "--data-dir", str(place)]
    return [sys.executable, *start, *given, "--corpus", str(place / "corpus.txt"), "--out", str(tmp_path / "out")]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc tells of the processes")
def test_a_signal_ends_processes_that_have_only_just_been_started(tmp_path):
    child = subprocess.Popen(
        command(tmp_path, ["-m", "fastbert"]), env=pretraining_runs.environment(), stderr=subprocess.PIPE, text=True
    )
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
    assert LEFT in told


# fastbert, with a Ctrl-C just after the place that it is told.
INTERRUPTED = """
import concurrent.futures, multiprocessing.context, os, signal, sys

place, starts = sys.argv.pop(1), 0

def start(process, start=multiprocessing.context.SpawnProcess.start):
    global starts
    start(process)
    starts += 1
    if place == f"process {starts}":
        os.kill(os.getpid(), signal.SIGINT)

def submit(*given, submit=concurrent.futures.ProcessPoolExecutor.submit):
    future = submit(*given)
    if place == "job":
        os.kill(os.getpid(), signal.SIGINT)
    return future

multiprocessing.context.SpawnProcess.start = start
concurrent.futures.ProcessPoolExecutor.submit = submit

from fastbert.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
"""


@pytest.mark.parametrize("place", [pytest.param("process 1", marks=pytest.mark.slow), "process 2", "job"])
def test_a_signal_while_the_processes_are_being_started(place, tmp_path):
    """What had been started was told nothing: a job went on to its end, a process told of the others' end by a
    traceback."""
    (tmp_path / "interrupted.py").write_text(INTERRUPTED)
    ended = subprocess.run(
        command(tmp_path, [str(tmp_path / "interrupted.py"), place]),
        cwd=tmp_path,
        env=pretraining_runs.environment(),
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert ended.returncode == 130
    assert LEFT in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.usefixtures("hangups_arrive")
def test_a_terminal_that_closes_leaves_a_process_without_a_job_alone():
    """It reaches the whole group; one that died of it broke the pool, and the study said that it had been killed."""
    from fastbert.study import run

    context = multiprocessing.get_context("spawn")
    numbers, started, ends = context.Queue(), context.Queue(), context.RawValue("b", 0)
    numbers.put(0)
    with concurrent.futures.ProcessPoolExecutor(1, context, run._initialise, (1, numbers, started, ends)) as pool:
        process = pool.submit(os.getpid).result()
        os.kill(process, signal.SIGHUP)
        assert pool.submit(os.getpid).result() == process


def test_a_signal_when_the_last_step_of_a_pretraining_is_done_ends_the_study(place, tmp_path, monkeypatch):
    """The pre-training has nothing to leave out then, and the study went on with the next one."""
    from fastbert.study import run
    from fastbert.train import loop

    def signalled(*given, write=loop.write_pages):
        signal.raise_signal(signal.SIGTERM)
        return write(*given)

    monkeypatch.setattr(loop, "write_pages", signalled)
    work, lines = run.work_of(study_runs.read(place), tmp_path), []
    with pytest.raises(KeyboardInterrupt):
        run.execute(work, say=lines.append)
    assert lines == []
    assert [model.result() is not None for model in work.models] == [True, False, False, False]
    assert not (work.models[0].directory / "run" / "checkpoints").exists()
