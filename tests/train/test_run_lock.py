"""The lock on a run directory, beside a run that ends at the same moment."""

from __future__ import annotations

import fcntl
import os

import pretraining_runs as runs
import pytest

from fastbert.errors import InputError
from fastbert.train.run_lock import only_run


def test_a_file_that_an_ending_run_removes_is_not_the_one_to_lock(tmp_path, monkeypatch):
    """Between the opening of the file and its lock: a third run would then have locked a new file, and written too."""
    path, lock = tmp_path / "run.lock", fcntl.lockf

    def removed_first(file, how):
        monkeypatch.setattr(fcntl, "lockf", lock)
        path.unlink()
        lock(file, how)

    monkeypatch.setattr(fcntl, "lockf", removed_first)
    with only_run(tmp_path):
        assert path.read_text() == str(os.getpid())
    assert not path.exists()


def test_the_directory_of_another_process_is_refused(tmp_path):
    with runs.another_run_in(tmp_path) as pid:
        refused = pytest.raises(InputError, match=f"got one by process {pid}")
        with refused, only_run(tmp_path):
            pass
    with only_run(tmp_path):  # free again, however the other one ended
        pass
