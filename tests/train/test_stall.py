"""The stall detector, on a run whose callback stands still."""

from __future__ import annotations

import faulthandler
import math
import subprocess
import sys
import time

import pretraining_runs as runs
import pytest

from fastbert.errors import InputError
from fastbert.train.config import PretrainConfig
from fastbert.train.pretrain import pretrain
from fastbert.train.stall import StallWatch


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return runs.prepare_data(tmp_path_factory.mktemp("stall") / "data")


def _stands_still_in_a_callback(row: dict) -> None:
    if row["kind"] == "train" and row["step"] == 3:
        time.sleep(1.5)


def test_a_run_that_stands_still_leaves_its_stacks(data, tmp_path, caplog):
    out = tmp_path / "run"
    config = runs.config(data, out, model="1x32x2", steps=5, eval_every=100, stall_minutes=0.5 / 60)
    result = pretrain(config, callbacks=[_stands_still_in_a_callback], quiet=True)
    assert result.steps == 5
    text = (out / "stall-0.txt").read_text()
    assert "_stands_still_in_a_callback" in text
    assert "in train_step" in text
    assert "the stacks of all threads are in" in caplog.text
    assert str(out / "stall-0.txt") in caplog.text


def test_a_run_that_does_not_stand_still_leaves_nothing(data, tmp_path):
    out = tmp_path / "run"
    config = runs.config(data, out, model="1x32x2", steps=3, eval_every=100, stall_minutes=5.0)
    pretrain(config, quiet=True)
    assert not list(out.glob("stall*"))


def test_steps_that_end_push_the_alarm_back(tmp_path):
    with StallWatch(tmp_path, 1.5 / 60, rank=3) as watch:  # on a busy machine a sleep is longer
        for _ in range(8):
            time.sleep(0.25)
            watch.alive()
        assert watch.path.stat().st_size == 0
    assert not watch.path.exists()


def test_a_file_that_someone_removed_ends_no_run(tmp_path):
    """It is empty as long as nothing stalls, and looks like a leftover."""
    with StallWatch(tmp_path, 0.1 / 60) as watch:
        watch.path.unlink()
        time.sleep(0.02)
        watch.alive()
    assert not list(tmp_path.iterdir())


def test_a_second_stall_is_written_behind_the_first(tmp_path):
    found = [0]
    for _ in range(2):
        with StallWatch(tmp_path, 0.1 / 60) as watch:
            deadline = time.monotonic() + 30
            while time.monotonic() < deadline and watch.path.read_text().count("Timeout (") == found[-1]:
                time.sleep(0.01)
        found.append(watch.path.read_text().count("Timeout ("))
    assert 0 < found[1] < found[2]


def test_a_process_that_holds_the_interpreter_is_seen(tmp_path):
    """A regular expression that backtracks for ever lets no other Python thread run."""
    code = (
        "import re, sys\n"
        "from fastbert.train.stall import StallWatch\n"
        "def stuck(): re.match('(a+)+$', 'a' * 40 + 'b')\n"
        "with StallWatch(sys.argv[1], 0.3 / 60): stuck()\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], env=runs.environment())
    try:
        deadline = time.monotonic() + 30
        path = tmp_path / "stall-0.txt"
        while time.monotonic() < deadline and not (path.exists() and "stuck" in path.read_text()):
            time.sleep(0.05)
        assert "in stuck" in path.read_text()
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()


def test_without_minutes_nothing_is_watched(tmp_path):
    with StallWatch(tmp_path, None) as watch:
        watch.alive()
    assert not list(tmp_path.iterdir())
    faulthandler.cancel_dump_traceback_later()


def test_minutes_that_make_no_sense():
    for minutes in (0.0, 1e-300, 1e300, math.inf, math.nan):  # the timer died of the second, and refused the third
        with pytest.raises(InputError, match=r"stall_minutes must be none or between 0\.001 and 527040, got"):
            PretrainConfig(stall_minutes=minutes)
