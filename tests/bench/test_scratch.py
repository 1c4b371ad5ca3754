"""The place for a measurement's files, which nobody has chosen."""

from __future__ import annotations

import errno

import pytest

from fastbert.bench import data
from fastbert.bench.scratch import scratch
from fastbert.cli.main import main


def test_a_full_disk_is_named(tmp_path, monkeypatch, capsys):
    """The system's error of a write names no file."""

    def write(_directory):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(data, "builtin", write)
    assert main(["bench", "data", "--quick", "--out", str(tmp_path / "out")]) == 2
    assert f"fastbert: {tmp_path}/fastbert-bench-" in capsys.readouterr().err
    assert not list(tmp_path.glob("fastbert-bench-*"))


@pytest.mark.parametrize("error", [OSError(errno.ENOENT, "No such file", "a.txt"), OSError("a library's")], ids=str)
def test_other_errors_stay_as_they_are(error):
    with pytest.raises(OSError) as raised, scratch():  # noqa: PT011 which one is compared below
        raise error
    assert raised.value is error
