"""Files and directories that appear whole or not at all."""

import errno
import json
import os
import re
import signal
from pathlib import Path

import numpy as np
import pytest

from fastbert.errors import CheckpointError, InputError
from fastbert.files import check_new, is_there, whole, whole_directory, write_whole
from fastbert.result_files import atomic_write, check_writable, write_json, write_npy


def stop_halfway(path):
    with atomic_write(path) as file:
        file.write("half")
        raise RuntimeError("stop")


def test_nothing_is_left_of_a_failed_write(tmp_path):
    path = tmp_path / "new" / "deep" / "f"
    with pytest.raises(RuntimeError, match="stop"):
        stop_halfway(path)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "f"
    path.write_text("old")
    with pytest.raises(RuntimeError, match="stop"):
        stop_halfway(path)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["f"]


def test_where_no_file_can_be_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("no directory")
    with pytest.raises(NotADirectoryError) as caught, atomic_write(tmp_path / "file" / "below"):
        pass
    assert caught.value.filename == str(tmp_path / "file")

    def denied(path, *_, **__):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("fastbert.result_files.open", denied, raising=False)  # root may write everywhere
    with pytest.raises(PermissionError) as caught, atomic_write(tmp_path / "results.tsv"):
        pass
    assert caught.value.filename == str(tmp_path / "results.tsv")


def test_a_written_file_follows_the_umask(tmp_path):
    old = os.umask(0o027)
    try:
        with atomic_write(tmp_path / "f") as file:
            file.write("x")
    finally:
        os.umask(old)
    assert (tmp_path / "f").stat().st_mode & 0o777 == 0o640


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full on this system")
def test_a_full_disk_names_the_file():
    with pytest.raises(OSError, match="/dev/full") as caught, write_npy("/dev/full") as writer:
        writer.append(np.ones((10_000, 10)))
    assert caught.value.errno == errno.ENOSPC


def test_npy_is_no_stream(tmp_path):
    reading, writing = os.pipe()
    for path in ("-", f"/dev/fd/{writing}"):
        with pytest.raises(InputError, match=f"{path}: expected a file to write vectors to"), write_npy(path):
            pass
    os.close(reading)
    os.close(writing)


def test_npy_of_unknown_length_reads_back(tmp_path):
    rng = np.random.default_rng(0)
    parts = [rng.standard_normal((n, 5)).astype(np.float32) for n in (1, 700, 0, 12_345)]
    with write_npy(tmp_path / "x.npy") as writer:
        for part in parts:
            writer.append(part)
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), np.concatenate(parts))


def test_a_whole_file_that_cannot_be_written_is_called_by_its_name(tmp_path):
    (tmp_path / "taken").mkdir()
    with pytest.raises(IsADirectoryError) as caught, whole(tmp_path / "taken") as path:
        path.write_text("page")
    assert caught.value.filename == str(tmp_path / "taken")
    with pytest.raises(OSError, match="No space left") as caught, whole(tmp_path / "page.html"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # as a write has it, without a name
    assert caught.value.filename == str(tmp_path / "page.html")
    with pytest.raises(FileNotFoundError) as caught, whole(tmp_path / "page.html"):
        (tmp_path / "source").read_text()
    assert caught.value.filename == str(tmp_path / "source")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes with a name")
def killed_while_it_writes(path: Path) -> None:
    """Leaves what a process leaves that is killed in the middle of a file."""
    child = os.fork()
    if child == 0:
        with whole(path) as place:
            place.write_text("half")
            os.kill(os.getpid(), signal.SIGKILL)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL


def test_what_killed_processes_left_of_a_file_goes_and_what_lives_stays(tmp_path):
    """It had a name that nobody knows, and stayed for ever: of `encode` all vectors up to then."""
    path, other = tmp_path / "vectors [1].npy", tmp_path / "other.npy"
    for killed in (path, path, other):
        killed_while_it_writes(killed)
    assert len(list(tmp_path.iterdir())) == 2
    with whole(path) as lives, whole(path) as second:
        lives.write_text("first")
        second.write_text("second")
        write_whole(path, "third")
        assert lives.exists()
    assert path.read_text() == "first"
    left = [place.name for place in tmp_path.iterdir() if place != path]
    assert [name[-9:] for name in left] == ["other.npy"]
    with pytest.raises(InputError, match="not empty"):
        check_new(tmp_path)
    assert list(tmp_path.iterdir()) == [path]
    path.unlink()
    killed_while_it_writes(path)
    check_new(tmp_path)


def test_a_pipe_is_written_to_and_not_replaced(tmp_path):
    """Nor is a device: `--out /dev/null` of an administrator's must leave it there."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    try:
        write_whole(path, "néw")
        assert os.read(reader, 100) == "néw".encode()
    finally:
        os.close(reader)
    assert path.is_fifo()
    assert [entry.name for entry in tmp_path.iterdir()] == ["pipe"]


def test_a_link_stays_and_what_it_leads_to_is_written(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    for name in ("there", "not yet"):
        link, target = tmp_path / f"link to {name}", tmp_path / "elsewhere" / name
        link.symlink_to(target)
        if name == "there":
            target.write_text("old")
        check_writable(link)
        write_json([1], link)
        assert link.is_symlink()
        assert json.loads(target.read_text()) == [1]
    assert len(list(tmp_path.iterdir())) == 3


def test_a_directory_is_not_written_over_through_a_link(tmp_path):
    (tmp_path / "held").mkdir()
    (tmp_path / "link").symlink_to("held")
    with pytest.raises(OSError, match="directory"):
        write_whole(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()


@pytest.mark.parametrize("fails", [(Path, "write_bytes"), (os, "fsync"), (os, "replace")], ids=lambda fails: fails[1])
def test_a_file_that_cannot_be_replaced_stays(tmp_path, monkeypatch, fails):
    path = tmp_path / "config.yaml"
    write_whole(path, "old")

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(*fails, full)
    said = f"^{re.escape(str(path))}: expected to write 4 bytes, got: No space left on device after [04] bytes$"
    with pytest.raises(CheckpointError, match=said):
        write_whole(path, "néw", CheckpointError)
    with pytest.raises(OSError, match="No space left") as caught:
        write_whole(path, "new")
    assert caught.value.filename == str(path)
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["config.yaml"]


def make_model(path, text):
    with whole_directory(path) as directory:
        directory.mkdir()
        (directory / "config.json").write_text(text)
        if text == "half":
            raise RuntimeError("stop")


def test_a_directory_takes_the_place_of_the_one_before(tmp_path):
    (tmp_path / "model.new").mkdir()
    (tmp_path / "model.new" / "left").write_text("by a process that was killed")
    for text in ("first", "second"):
        make_model(tmp_path / "model", text)
        assert [file.read_text() for file in (tmp_path / "model").iterdir()] == [text]
        assert os.listdir(tmp_path) == ["model"]


@pytest.mark.parametrize("before", [None, "before"])
def test_nothing_is_left_of_a_directory_that_was_not_finished(tmp_path, before):
    if before is not None:
        make_model(tmp_path / "model", before)
    with pytest.raises(RuntimeError, match="stop"):
        make_model(tmp_path / "model", "half")
    assert [file.read_text() for file in tmp_path.glob("*/config.json")] == ([] if before is None else [before])
    assert os.listdir(tmp_path) == ([] if before is None else ["model"])


def test_a_directory_is_put_back_that_stood_aside_in_a_crash(tmp_path, monkeypatch):
    path, rename = tmp_path / "model", os.rename
    assert not is_there(path)
    make_model(path, "before")

    def killed(source, target):
        if target == path:
            raise KeyboardInterrupt
        rename(source, target)

    monkeypatch.setattr(os, "rename", killed)
    with pytest.raises(KeyboardInterrupt):
        make_model(path, "after")
    monkeypatch.undo()
    assert not path.exists()
    assert is_there(path)
    assert (path / "config.json").read_text() == "before"
