"""Checkpoints: exact, whole or not there at all, and distrusted when read."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import pathlib
import random
import re
import threading
from pathlib import Path

import pytest
import torch
from pretraining_runs import assert_same_bits

from fastbert.errors import CheckpointError
from fastbert.train import checkpoint, tensor_file

DTYPES = [torch.float64, torch.float32, torch.float16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
FILES = ["weights.safetensors", "optimizer.safetensors", "state.json", "manifest.json"]
STATE = {"step": 3, "place": [1, 7], "best": {"mlm_loss": 0.1 + 0.2}, "name": "é", "none": None}


def some_tensors(seed: int = 0) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    return {
        "model.weight": torch.randn(17, 5),
        "model.half": torch.randn(3, 4).bfloat16(),
        "optimizer.step.w": torch.tensor(7.0),
        "optimizer.exp_avg.w": torch.randn(9, 3),
        "ids": torch.arange(5),
        "empty": torch.zeros(0, 3),
        "special": torch.tensor([float("nan"), float("inf"), -0.0, 1e-45]),
    }


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_round_trip_is_bit_equal(tmp_path):
    path = checkpoint.save(tmp_path / "new" / "checkpoints", 3, some_tensors(), STATE)
    assert path == tmp_path / "new" / "checkpoints" / "step_3"
    assert names(path) == ["manifest.json", "optimizer.safetensors", "state.json", "weights.safetensors"]
    tensors, state, step = checkpoint.load(path)
    assert_same_bits(tensors, some_tensors())
    assert state == STATE
    assert state["best"]["mlm_loss"] == 0.30000000000000004
    assert step == 3


def test_manifest_says_what_is_there(tmp_path):
    path = checkpoint.save(tmp_path, 3, some_tensors(), STATE)
    manifest = json.loads((path / "manifest.json").read_text())
    for name in ("weights.safetensors", "optimizer.safetensors", "state.json"):
        data = (path / name).read_bytes()
        assert manifest["files"][name] == {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    assert manifest["step"] == 3
    assert manifest["torch"] == torch.__version__


def test_tied_views_and_strided_tensors(tmp_path):
    base = torch.arange(12.0).reshape(3, 4)
    given = {"a": base, "tied": base, "row": base[1], "transposed": base.t()}
    expected = {name: value.clone().contiguous() for name, value in given.items()}
    assert_same_bits(checkpoint.load(checkpoint.save(tmp_path, 1, given, {}))[0], expected)


def test_keeps_the_newest_and_the_protected(tmp_path):
    for step in (1, 2, 9, 10, 11):  # 10 after 9: numbers, not text
        checkpoint.save(tmp_path, step, some_tensors(), STATE, keep=2, protect=[2])
    assert names(tmp_path) == ["step_10", "step_11", "step_2"]
    assert checkpoint.latest_valid(tmp_path) == (tmp_path / "step_11", [])


def test_an_older_step_than_those_there_survives_its_own_pruning(tmp_path):
    for step in (10, 20, 5):
        checkpoint.save(tmp_path, step, some_tensors(), STATE, keep=2)
    assert names(tmp_path) == ["step_10", "step_20", "step_5"]


def test_pruning_leaves_what_is_not_ours(tmp_path):
    for name in ("step_1.tmp-0123abcd", "step_2.gone-ff", "step_x", "notes"):
        (tmp_path / name).mkdir()
    checkpoint.save(tmp_path, 5, some_tensors(), STATE)
    assert names(tmp_path) == ["notes", "step_5", "step_x"]


def test_writing_a_step_again_replaces_it(tmp_path):
    checkpoint.save(tmp_path, 5, some_tensors(0), {"n": 1})
    path = checkpoint.save(tmp_path, 5, some_tensors(1), {"n": 2})
    tensors, state, _ = checkpoint.load(path)
    assert_same_bits(tensors, some_tensors(1))
    assert state == {"n": 2}
    assert names(tmp_path) == ["step_5"]


def test_one_that_is_written_again_while_it_is_read_is_no_mixture(tmp_path, monkeypatch):
    from safetensors import torch as library

    checkpoint.save(tmp_path, 1, {"model.a": torch.zeros(1), "optimizer.step.a": torch.zeros(1)}, {})
    read = library.load_file

    def interrupted(path):
        tensors = read(path)
        checkpoint.save(tmp_path, 1, {"model.a": torch.ones(1), "optimizer.step.a": torch.ones(1)}, {})
        return tensors

    monkeypatch.setattr(library, "load_file", interrupted)
    with pytest.raises(CheckpointError, match="step_1: expected one checkpoint, but it was written again while it was"):
        checkpoint.load(tmp_path / "step_1")


def test_the_tensors_of_a_file_begin_at_whole_words(tmp_path):
    """Eight bytes each, as the format's own library writes them: whoever maps the file reads whole numbers."""
    for length in range(1, 9):
        path = tmp_path / "a"
        tensor_file.write_tensors(path, {"x" * length: torch.zeros(1)})
        assert int.from_bytes(path.read_bytes()[:8], "little") % 8 == 0


def test_nothing_there(tmp_path):
    assert checkpoint.latest_valid(tmp_path / "missing") == (None, [])
    assert checkpoint.latest_valid(tmp_path) == (None, [])
    with pytest.raises(CheckpointError, match=r"expected a checkpoint with a manifest\.json, found none"):
        checkpoint.load(tmp_path / "missing")


@pytest.mark.parametrize("file", FILES)
def test_truncation_is_detected_at_any_length(tmp_path, file):
    old = checkpoint.save(tmp_path, 1, some_tensors(0), STATE)
    new = checkpoint.save(tmp_path, 2, some_tensors(1), STATE)
    data = (new / file).read_bytes()
    lengths = {0, 1, 7, 8, 9, len(data) - 1} | {len(data) * i // 34 for i in range(34)}
    for length in sorted(lengths):
        (new / file).write_bytes(data[:length])
        path, [(skipped, reason)] = checkpoint.latest_valid(tmp_path)
        assert (path, skipped) == (old, new)
        assert file in reason
        if file != "manifest.json":
            assert f"expected {len(data)} bytes, got {length}" in reason
        with pytest.raises(CheckpointError):
            checkpoint.load(new)


@pytest.mark.parametrize("file", FILES)
def test_flipped_bits_are_detected(tmp_path, file):
    old = checkpoint.save(tmp_path, 1, some_tensors(0), STATE)
    new = checkpoint.save(tmp_path, 2, some_tensors(1), STATE)
    data = (new / file).read_bytes()
    pick = random.Random(0)
    for _ in range(40):
        broken = bytearray(data)
        broken[pick.randrange(len(data))] ^= 1 << pick.randrange(8)
        (new / file).write_bytes(broken)
        path, skipped = checkpoint.latest_valid(tmp_path)
        if file != "manifest.json":
            assert path == old
            assert f"{new / file}: expected bytes with SHA-256" in skipped[0][1]
        elif path == new:  # a flip in a version or in white space is no damage to what is loaded
            assert_same_bits(checkpoint.load(path)[0], some_tensors(1))
            assert json.loads(broken)["files"] == json.loads(data)["files"]


@pytest.mark.parametrize("file", FILES)
def test_a_missing_file_is_detected(tmp_path, file):
    new = checkpoint.save(tmp_path, 2, some_tensors(1), STATE)
    (new / file).unlink()
    path, [(_, reason)] = checkpoint.latest_valid(tmp_path)
    assert path is None
    assert file in reason


def test_manifests_that_lie_are_refused(tmp_path):
    path = checkpoint.save(tmp_path / "c", 2, some_tensors(), STATE)
    good = json.loads((path / "manifest.json").read_text())
    outside = tmp_path / "outside.safetensors"
    outside.write_bytes((path / "weights.safetensors").read_bytes())
    entry = good["files"]["weights.safetensors"]
    lies = [
        {**good, "files": {"../../outside.safetensors": entry, "state.json": good["files"]["state.json"]}},
        {**good, "files": {str(outside): entry, "state.json": good["files"]["state.json"]}},
        {**good, "files": {**good["files"], "../x": entry}},
        {**good, "files": {**good["files"], "more/../../x": entry}},
        {**good, "files": {**good["files"], "./x": entry}},
        {**good, "files": {**good["files"], "more//x": entry}},
        {**good, "files": {**good["files"], "more\\x": entry}},
        {**good, "files": {"weights.safetensors": entry}},
        {**good, "files": {name: e for name, e in good["files"].items() if name != "optimizer.safetensors"}},
        {**good, "files": []},
        {**good, "format": 3},
        {**good, "format": [2]},
        {**good, "format": 1},
        {**good, "step": -1},
        {**good, "step": "many"},
        {**good, "step": float("inf")},
        {**good, "files": {**good["files"], "state.json": None}},
        [],
        None,
    ]
    for lie in lies:
        (path / "manifest.json").write_text(json.dumps(lie))
        with pytest.raises(CheckpointError, match=r"manifest\.json"):
            checkpoint.load(path)
    (path / "manifest.json").write_text("[" * 100_000)
    with pytest.raises(CheckpointError, match=r"manifest\.json"):
        checkpoint.load(path)


def test_a_link_in_place_of_a_file_is_refused(tmp_path):
    path = checkpoint.save(tmp_path / "c", 2, some_tensors(), STATE)
    outside = tmp_path / "outside"
    (path / "weights.safetensors").rename(outside)
    (path / "weights.safetensors").symlink_to(outside)
    with pytest.raises(CheckpointError, match=r"weights\.safetensors: expected a file"):
        checkpoint.load(path)


def test_further_files_come_under_the_manifest(tmp_path):
    """As an engine of several processes writes them."""

    def more(directory: Path) -> None:
        (directory / "ranks" / "deep").mkdir(parents=True)
        for name in ("ranks/rank_0.pt", "ranks/deep/x"):
            (directory / name).write_bytes(name.encode())

    path = checkpoint.save(tmp_path, 1, some_tensors(), STATE, world_size=2, more=more)
    manifest = checkpoint.verify(path)
    assert set(manifest["files"]) == {*FILES[:-1], "ranks/rank_0.pt", "ranks/deep/x"}
    assert manifest["world_size"] == 2
    good = (path / "ranks/rank_0.pt").read_bytes()
    for bad in (good[:-1], good[:-1] + b"!", b""):
        (path / "ranks/rank_0.pt").write_bytes(bad)
        with pytest.raises(CheckpointError, match=r"rank_0\.pt: expected"):
            checkpoint.verify(path)
    (path / "ranks/rank_0.pt").write_bytes(good)
    for stranger in ("ranks/rank_1.pt", "x.pkl"):
        (path / stranger).write_bytes(b"")
        with pytest.raises(CheckpointError, match="expected only the files that manifest"):
            checkpoint.load(path)
        (path / stranger).unlink()
    (path / "ranks" / "deep").rename(tmp_path / "deep")
    (path / "ranks" / "deep").symlink_to(tmp_path / "deep")
    with pytest.raises(CheckpointError, match="expected only"):
        checkpoint.load(path)


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="this system does not say which file a number is of")
def test_all_that_a_checkpoint_needs_is_forced_to_the_disk(tmp_path, monkeypatch):
    """Its files and folders, what an engine adds to them, the names of the folders above, and each change of a name."""
    forced, fsync = [], os.fsync

    def spy(descriptor: int) -> None:
        forced.append(re.sub(r"\.tmp-\w+", "", os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    def more(directory: Path) -> None:
        (directory / "shards").mkdir()
        (directory / "shards" / "rank0").write_bytes(b"a shard")

    monkeypatch.setattr(os, "fsync", spy)
    directory = tmp_path / "run" / "checkpoints"
    path = checkpoint.save(directory, 1, {"w": torch.ones(3)}, {}, more=more)
    assert {*map(str, path.rglob("*")), *map(str, (path, directory, tmp_path / "run", tmp_path))} <= set(forced)
    assert forced[-1] == str(directory), "after its name has changed"
    forced.clear()
    checkpoint.leave_behind(directory, 0)
    assert forced == [str(directory)]


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float8_e4m3fn])
def test_a_tensor_that_the_format_cannot_hold_is_named(tmp_path, dtype):
    with pytest.raises(CheckpointError, match="odd: expected a dtype that a safetensors file can hold"):
        checkpoint.save(tmp_path, 1, {"odd": torch.zeros(3, dtype=dtype)}, {})
    assert names(tmp_path) == []


def test_the_library_reads_every_dtype(tmp_path):
    """What is written block by block holds, for safetensors itself, the same tensors."""
    import safetensors.torch

    tensors = some_tensors() | {f"t{i}": torch.arange(i).to(d) for i, d in enumerate(DTYPES)}
    path = checkpoint.save(tmp_path, 1, tensors, {})
    weights, moments = (safetensors.torch.load_file(path / name) for name in FILES[:2])
    assert sorted(moments) == ["optimizer.exp_avg.w", "optimizer.step.w"]
    again = weights | moments
    assert_same_bits(again, tensors)
    # From files: its load() of bytes took no empty tensor in older releases.
    (tmp_path / "theirs").write_bytes(safetensors.torch.save(tensors))
    assert_same_bits(safetensors.torch.load_file(tmp_path / "theirs"), again)


def test_blocks_of_any_size_are_the_same_file(tmp_path, monkeypatch):
    files = []
    tensors = some_tensors() | {"large": torch.randn(5000)}  # of several pages, the last one begun
    for block in (1 << 24, 7, 64, 4096, 8192):
        monkeypatch.setattr(tensor_file, "_BLOCK", block)
        path = checkpoint.save(tmp_path, block, tensors, {}, keep=9)
        files.append((path / "weights.safetensors").read_bytes())
        checkpoint.verify(path)
    assert len(files[0]) > 4 * 4096
    assert all(file == files[0] for file in files)


class Stubborn:
    """A file system that takes the flag for writing past the page cache and then refuses, or stops half way."""

    def __init__(self, file, how: str) -> None:
        self.file, self.how, self.refused = file, how, 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()

    def fileno(self) -> int:
        return self.file.fileno()

    def write(self, data) -> int:
        if fcntl.fcntl(self.fileno(), fcntl.F_GETFL) & os.O_DIRECT:
            self.refused += 1
            if self.how == "refuses":
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            return self.file.write(data[:512])
        return self.file.write(data)


@pytest.mark.skipif(not hasattr(os, "O_DIRECT"), reason="the system has no way past its page cache")
@pytest.mark.parametrize("how", ["refuses", "stops"])
def test_a_file_system_without_direct_writes_gets_the_same_file(tmp_path, monkeypatch, how):
    monkeypatch.setattr(tensor_file, "_BLOCK", 4096)
    tensors = {"large": torch.randn(5000)}
    plain = checkpoint.save(tmp_path / "plain", 1, tensors, {})
    opened = []

    def stubborn(path, mode="r", **options):
        opened.append(Stubborn(open(path, mode, **options), how))  # noqa: SIM115  (the wrapper closes it)
        return opened[-1]

    monkeypatch.setattr(tensor_file, "open", stubborn, raising=False)
    odd = checkpoint.save(tmp_path / "odd", 1, tensors, {})
    assert sum(file.refused for file in opened) >= 4
    assert (odd / "weights.safetensors").read_bytes() == (plain / "weights.safetensors").read_bytes()
    checkpoint.verify(odd)


def test_bytes_that_verify_but_are_no_tensors_are_one_sentence(tmp_path):
    path = checkpoint.save(tmp_path, 2, some_tensors(), STATE)
    payload = b"\x80\x04cos\nsystem\n."  # a pickle
    (path / "weights.safetensors").write_bytes(payload)
    manifest = json.loads((path / "manifest.json").read_text())
    digest = hashlib.sha256(payload).hexdigest()
    manifest["files"]["weights.safetensors"] = {"bytes": len(payload), "sha256": digest}
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match="cannot be read"):
        checkpoint.load(path)


class Disk:
    """Fails the n-th operation of a kind with an error number."""

    def __init__(self, monkeypatch, kind: str, fail_at: int, code: int) -> None:
        self.kind, self.left, self.code = kind, fail_at, code
        self.failed = False
        self.lock = threading.Lock()  # two files are written at the same time
        for name in ("fsync", "rename", "mkdir", "replace"):
            monkeypatch.setattr(os, name, self._wrap(name, getattr(os, name)))
        if hasattr(pathlib, "_normal_accessor"):  # Python 3.10's, which holds on to os.mkdir
            monkeypatch.setattr(pathlib._normal_accessor, "mkdir", os.mkdir)
        monkeypatch.setattr(tensor_file, "open", self._open, raising=False)

    def _tick(self, kind: str) -> None:
        if kind != self.kind:
            return
        with self.lock:
            self.left -= 1
            fails = self.left == 0
        if fails:
            self.failed = True
            raise OSError(self.code, os.strerror(self.code))

    def _wrap(self, kind, function):
        def wrapped(*args, **kwargs):
            self._tick(kind)
            return function(*args, **kwargs)

        return wrapped

    def _open(self, path, mode="r", **kwargs):
        if "w" not in mode:
            return open(path, mode, **kwargs)
        self._tick("open")
        file = open(path, mode, buffering=0)  # noqa: SIM115  (the wrapper closes it)
        write = file.write

        class Faulty:
            def __enter__(inner):
                return inner

            def __exit__(inner, *_):
                file.close()

            def write(inner, data):
                half = len(data) // 2
                write(data[:half])  # a full disk takes a part first
                self._tick("write")
                return half + write(data[half:])

            flush, fileno = staticmethod(file.flush), staticmethod(file.fileno)

        return Faulty()


# How often a save does each: 4 files, written in blocks; fsync of these, of the temporary and of the parent directory;
# renames into place.
OPERATIONS = [("mkdir", 1), ("open", 4), ("write", None), ("fsync", 6), ("rename", 1)]
BLOCK = 100


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize("again", [False, True], ids=["new step", "same step"])
@pytest.mark.parametrize(("kind", "times"), OPERATIONS)
def test_a_failing_disk_leaves_the_previous_checkpoint(tmp_path, monkeypatch, kind, times, again, code):
    monkeypatch.setattr(tensor_file, "_BLOCK", BLOCK)
    monkeypatch.setattr(os, "fsync", lambda _: None)  # nobody pulls the plug here, and it takes most of the time
    if kind == "write":
        sample = checkpoint.save(tmp_path / "sample", 1, some_tensors(0), {"n": 1})
        times = sum(-(-path.stat().st_size // BLOCK) for path in sample.iterdir())
        assert times > 8
    times += kind == "rename" and again  # the one that is there stands aside
    for fail_at in range(1, times + 2):
        directory = tmp_path / str(fail_at)
        checkpoint.save(directory, 1, some_tensors(0), {"n": 1})
        step = 1 if again else 2
        with monkeypatch.context() as patch:
            disk = Disk(patch, kind, fail_at, code)
            if fail_at > times:  # proves that ``times`` is how often it happens
                checkpoint.save(directory, step, some_tensors(1), {"n": 2})
                assert not disk.failed
                break
            with pytest.raises(CheckpointError) as caught:
                checkpoint.save(directory, step, some_tensors(1), {"n": 2})
        assert disk.failed
        message = str(caught.value)
        assert os.strerror(code) in message
        assert f"step_{step}" in message
        assert any(word.isdigit() and int(word) > 0 for word in message.split()), f"no bytes in: {message}"
        assert not [name for name in names(directory) if ".tmp-" in name]
        path, skipped = checkpoint.latest_valid(directory)
        assert not skipped
        tensors, state, _ = checkpoint.load(path)
        # When only the last fsync fails, the new one is in place already, and whole.
        assert state in ([{"n": 1}, {"n": 2}] if kind == "fsync" and fail_at == 6 else [{"n": 1}])
        assert_same_bits(tensors, some_tensors(state["n"] - 1))
        # The disk has room again.
        checkpoint.save(directory, 3, some_tensors(2), {"n": 3}, keep=1)
        assert names(directory) == ["step_3"]


def test_a_disk_that_fails_twice_while_a_step_is_replaced(tmp_path, monkeypatch):
    """Neither the new directory nor the old one can be renamed to step_1: the one that stands aside still counts."""
    checkpoint.save(tmp_path, 1, some_tensors(0), {"n": 1})
    with monkeypatch.context() as patch:
        rename, calls = os.rename, []

        def failing(source, target):
            calls.append(target)
            if len(calls) > 1:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            rename(source, target)

        patch.setattr(os, "rename", failing)
        with pytest.raises(CheckpointError):
            checkpoint.save(tmp_path, 1, some_tensors(1), {"n": 2})
    path, _ = checkpoint.latest_valid(tmp_path)
    assert path.name.startswith("step_1.old-")
    assert_same_bits(checkpoint.load(path)[0], some_tensors(0))
    # The next save brings it back under its name, where it can be protected.
    checkpoint.save(tmp_path, 2, some_tensors(2), STATE, keep=1, protect=[1])
    assert names(tmp_path) == ["step_1", "step_2"]
    assert_same_bits(checkpoint.load(tmp_path / "step_1")[0], some_tensors(0))


def test_unreadable_bytes_are_skipped(tmp_path, monkeypatch):
    old = checkpoint.save(tmp_path, 1, some_tensors(0), STATE)
    new = checkpoint.save(tmp_path, 2, some_tensors(1), STATE)

    def failing(path, mode="r", **kwargs):
        if Path(path).parent == new:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return open(path, mode, **kwargs)

    monkeypatch.setattr("fastbert.files.open", failing, raising=False)
    path, [(skipped, reason)] = checkpoint.latest_valid(tmp_path)
    assert (path, skipped) == (old, new)
    assert os.strerror(errno.EIO) in reason
