"""RELIABILITY 5 on a real file system that is too small; tests/train/test_checkpoint.py fails each call in turn."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import pretraining_runs as runs
import pytest
import torch

from fastbert.errors import CheckpointError
from fastbert.train import checkpoint
from fastbert.train.append import Appender
from fastbert.train.console import Console
from fastbert.train.pretrain import pretrain


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 2 MiB; only root can mount one."""
    if os.geteuid() != 0:
        pytest.skip("mounting a file system needs root")
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(disk: Path, leave: int) -> Path:
    free = os.statvfs(disk)
    ballast = disk / "ballast"
    ballast.write_bytes(b"\0" * max(free.f_bavail * free.f_frsize - leave, 0))
    return ballast


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not come"
        time.sleep(0.01)


def test_a_full_disk_keeps_the_checkpoint_before(small_disk):
    weight = torch.randn(100_000)
    checkpoint.save(small_disk / "c", 1, {"w": weight}, {"n": 1})
    ballast = fill(small_disk, 200_000)
    with pytest.raises(CheckpointError, match=r"weights\.safetensors: 400\d\d\d bytes could not be written: No space"):
        checkpoint.save(small_disk / "c", 2, {"w": weight + 1}, {"n": 2})
    path, skipped = checkpoint.latest_valid(small_disk / "c")
    assert (path.name, skipped) == ("step_1", [])
    assert torch.equal(checkpoint.load(path)[0]["w"], weight)
    assert [p.name for p in (small_disk / "c").iterdir()] == ["step_1"]
    ballast.unlink()
    checkpoint.save(small_disk / "c", 2, {"w": weight + 1}, {"n": 2}, keep=1)
    assert checkpoint.latest_valid(small_disk / "c")[0].name == "step_2"


def test_rows_of_a_log_wait_for_room(small_disk, caplog):
    log = Appender(small_disk / "log")
    log.write("first\n")
    ballast = fill(small_disk, 0)
    rows = [f"{number:05}\n" for number in range(2000)]  # more than the rest of the file's last page holds
    for row in rows:
        log.write(row)
    assert (small_disk / "log").stat().st_size < 6 + 2000 * 6
    assert caplog.text.count("log gets no more lines until there is room: No space left on device") == 1
    ballast.unlink()
    log.write()
    assert (small_disk / "log").read_text() == "first\n" + "".join(rows)


def test_rows_of_a_log_wait_where_a_file_may_not_become_larger(tmp_path, caplog):
    """A batch system's limit; Python has the signal ignored that would end the process."""
    log, rows = Appender(tmp_path / "log"), [f"{number:05}\n" for number in range(30)]
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        for row in rows:
            log.write(row)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (tmp_path / "log").stat().st_size == 100
    assert caplog.text.count("log gets no more lines until there is room: File too large") == 1
    log.write()
    assert (tmp_path / "log").read_text() == "".join(rows)


def test_a_printed_line_waits_for_room(tmp_path, monkeypatch):
    """Where a batch system keeps what is printed is often a smaller disk than that of the run."""
    with open("/dev/full", "w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        console = Console()
        console.say("first")
        with open(tmp_path / "printed", "w") as room:
            os.dup2(room.fileno(), out.fileno())
        console.say("second")
    assert (tmp_path / "printed").read_text() == "first\nsecond\n"


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("errors", ["stop", "continue"])
def test_a_run_on_a_disk_that_fills_up(small_disk, tmp_path, errors, asynchronous, capsys):
    """It ends in one sentence, the checkpoint before intact; or, told so, goes on and saves once there is room."""
    data = runs.prepare_data(tmp_path / "data")
    out, ballast = small_disk / "run", []

    def meddle(row: dict) -> None:
        if row["kind"] == "train" and row["step"] == 3:
            # The checkpoint before may still be on its way in the background.
            wait_for(out / "checkpoints" / "step_2")
            ballast.append(fill(small_disk, 100_000))
        if row["kind"] == "train" and row["step"] == 7:
            ballast.pop().unlink()

    config = runs.config(data, out, steps=9, save_every=2, eval_every=4, save_errors=errors, async_save=asynchronous)
    if errors == "stop":
        with pytest.raises(CheckpointError, match="No space left"):
            pretrain(config, callbacks=[meddle])
        assert checkpoint.latest_valid(out / "checkpoints")[0].name == "step_2"
        return
    result = pretrain(config, callbacks=[meddle])
    assert result.steps == 9
    assert capsys.readouterr().out.count("training goes on without it") >= 2  # the checkpoint and the best model
    assert checkpoint.latest_valid(out / "checkpoints") == (out / "checkpoints" / "step_9", [])
    assert not [path for path in out.rglob("*") if ".tmp" in path.name or path.name == "model.new"]
