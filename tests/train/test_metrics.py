"""metrics.jsonl and TensorBoard events: every row once, also over an interruption."""

from __future__ import annotations

import errno
import json
import math
import os
import resource
import subprocess
import sys
import threading
import types
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fastbert.errors import CheckpointError, InputError
from fastbert.train import metrics
from fastbert.train.metrics import MetricsLog, read_metrics
from fastbert.train.wandb_log import WandbLog


def scalars(run_dir: Path, tag: str) -> list[tuple[int, float]]:
    # What TensorBoard itself shows, after purging what a resumed run does again.
    events = EventAccumulator(str(run_dir / "tensorboard")).Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


def fill(run_dir: Path, steps: range, resume_step: int | None = None, offset: float = 0.0) -> list[dict]:
    with MetricsLog(run_dir, resume_step=resume_step) as log:
        for step in steps:
            log.log("train", step, loss=step + offset, lr=1e-4)
            if step % 2 == 0:
                log.log("heldout", step, loss=step + offset + 0.5, note="words are not drawn")
        return log.rows()


def test_rows_are_in_the_file_and_in_tensorboard(tmp_path):
    rows = fill(tmp_path, range(1, 5))
    assert rows[:3] == [
        {"kind": "train", "step": 1, "loss": 1.0, "lr": 1e-4},
        {"kind": "train", "step": 2, "loss": 2.0, "lr": 1e-4},
        {"kind": "heldout", "step": 2, "loss": 2.5, "note": "words are not drawn"},
    ]
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == rows == read_metrics(tmp_path / "metrics.jsonl")
    assert scalars(tmp_path, "train/loss") == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0)]
    assert scalars(tmp_path, "heldout/loss") == [(2, 2.5), (4, 4.5)]


def test_numbers_come_back_exactly(tmp_path):
    values = {"a": 0.1 + 0.2, "b": 1e-300, "c": math.inf, "d": 2**53 + 1}
    with MetricsLog(tmp_path) as log:
        log.log("train", 1, **values, e=math.nan)
    (row,) = read_metrics(tmp_path / "metrics.jsonl")
    assert {name: row[name] for name in values} == values
    assert math.isnan(row["e"])


def test_every_line_is_strict_json(tmp_path):
    """A NaN is no number in JSON, and a reader that knows only JSON would stop at it."""

    def refuse(word: str):
        raise ValueError(word)

    with MetricsLog(tmp_path) as log:
        log.log("train", 1, a=math.nan, b=math.inf, c=-math.inf, d=1.5, note="NaN is a word")
    (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    row = json.loads(line, parse_constant=refuse)
    assert (row["a"], row["b"], row["c"], row["d"]) == ("NaN", "Infinity", "-Infinity", 1.5)
    (again,) = read_metrics(tmp_path / "metrics.jsonl")
    assert math.isnan(again["a"])
    assert (again["b"], again["c"], again["note"]) == (math.inf, -math.inf, "NaN is a word")


def test_a_row_is_on_the_disk_when_log_returns(tmp_path):
    with MetricsLog(tmp_path) as log:
        for step in (1, 2):
            log.log("train", step, loss=0.5)
            assert [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl")] == list(range(1, step + 1))


def test_a_resume_drops_what_is_done_again(tmp_path):
    before = fill(tmp_path, range(1, 7))
    rows = fill(tmp_path, range(4, 9), resume_step=3, offset=100.0)
    kept = [row for row in before if row["step"] <= 3]
    assert rows[: len(kept)] == kept
    assert rows == read_metrics(tmp_path / "metrics.jsonl")
    assert [row["step"] for row in rows if row["kind"] == "train"] == list(range(1, 9))
    expected = [(n, float(n)) for n in (1, 2, 3)] + [(n, n + 100.0) for n in range(4, 9)]
    assert [(row["step"], row["loss"]) for row in rows if row["kind"] == "train"] == expected
    assert scalars(tmp_path, "train/loss") == expected


def test_event_files_of_one_run_never_share_a_second(tmp_path):
    for start in (1, 2, 3):
        fill(tmp_path, range(start, start + 1), resume_step=start - 1 or None)
    names = sorted(path.name for path in (tmp_path / "tensorboard").iterdir())
    assert len({name.split(".")[3] for name in names}) == len(names) == 3
    assert scalars(tmp_path, "train/loss") == [(1, 1.0), (2, 2.0), (3, 3.0)]


def test_a_second_that_ends_between_two_looks_at_the_clock(tmp_path, monkeypatch):
    """On a busy machine a resume ended by "sleep length must be non-negative"."""
    (tmp_path / "tensorboard").mkdir()
    (tmp_path / "tensorboard" / "events.out.tfevents.100.host.1.0").touch()
    readings, slept = iter([100.75, 101.25, 101.5]), []
    clock = types.SimpleNamespace(time=lambda: next(readings), sleep=slept.append)
    log = MetricsLog(tmp_path, 0)
    monkeypatch.setattr(metrics, "time", clock)
    log._wait_for_a_later_second()
    assert slept == [0.25]


def test_a_new_log_is_empty(tmp_path):
    fill(tmp_path, range(1, 4))
    with MetricsLog(tmp_path) as log:
        assert log.rows() == []
    assert read_metrics(tmp_path / "metrics.jsonl") == []


@pytest.mark.parametrize("tail", [b'{"kind": "train", "st', b"\x00\x00\x00", b'{"kind": "tr\xff'])
def test_a_line_that_a_crash_cut_off(tmp_path, tail):
    rows = fill(tmp_path, range(1, 4))
    with open(tmp_path / "metrics.jsonl", "ab") as file:
        file.write(tail)
    assert read_metrics(tmp_path / "metrics.jsonl") == rows
    resumed = fill(tmp_path, range(4, 5), resume_step=3)
    assert resumed == read_metrics(tmp_path / "metrics.jsonl")
    assert [row["step"] for row in resumed if row["kind"] == "train"] == [1, 2, 3, 4]


def test_a_line_that_is_no_row_costs_no_other(tmp_path, caplog):
    rows = fill(tmp_path, range(1, 4))
    path = tmp_path / "metrics.jsonl"
    first, *rest = path.read_text().splitlines(keepends=True)
    path.write_text("".join([first[:-5] + "\n", '{"loss": 1.0}\n', *rest]))
    resumed = fill(tmp_path, range(4, 5), resume_step=3)
    assert [row for row in resumed if row["step"] < 4] == rows[1:]
    assert [number in caplog.text for number in ("line 1", "line 2", "line 3")] == [True, True, False]


def test_a_full_disk_while_resuming_leaves_the_log(tmp_path, monkeypatch):
    fill(tmp_path, range(1, 4))
    before = (tmp_path / "metrics.jsonl").read_bytes()

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    said = r"metrics\.jsonl: expected to write \d+ bytes, got: No space left on device"  # no other file's name
    with pytest.raises(CheckpointError, match=said):
        MetricsLog(tmp_path, resume_step=1)
    assert (tmp_path / "metrics.jsonl").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.jsonl", "tensorboard"]


def test_events_that_cannot_be_written_are_told_once_and_end_nothing(tmp_path, monkeypatch, caplog):
    from torch.utils import tensorboard

    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with MetricsLog(tmp_path) as log:
        log.log("train", 1, loss=1.0)
        monkeypatch.setattr(tensorboard.SummaryWriter, "add_scalar", full)
        log.log("train", 2, loss=2.0)
        log.log("train", 3, loss=3.0)
    assert [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [1, 2, 3]
    assert caplog.text.count("gets no more events: No space left on device") == 1
    monkeypatch.setattr(tensorboard, "SummaryWriter", full)
    with MetricsLog(tmp_path / "tensorboard") as log:
        log.log("train", 1, loss=1.0)
    assert len(read_metrics(tmp_path / "tensorboard" / "metrics.jsonl")) == 1


def test_a_disk_that_fills_up_under_the_thread_that_writes_events_prints_no_traceback(tmp_path, monkeypatch, caplog):
    """Of a full disk a run's user read twenty lines of TensorBoard's, and the sentence below them."""
    printed = []
    monkeypatch.setattr(threading, "excepthook", printed.append)
    hook, before = threading.excepthook, resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with MetricsLog(tmp_path) as log:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
            for step in range(1, 60):
                log.log("train", step, loss=1.0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not printed
    assert threading.excepthook is hook
    assert caplog.text.count("gets no more events: File too large") == 1


def test_another_threads_error_is_printed_as_ever(tmp_path, monkeypatch):
    printed = []
    monkeypatch.setattr(threading, "excepthook", printed.append)
    with MetricsLog(tmp_path):
        thread = threading.Thread(target=lambda: open(tmp_path / "none"))  # noqa: SIM115
        thread.start()
        thread.join()
    assert [ended.exc_type for ended in printed] == [FileNotFoundError]


def test_no_file_has_no_rows(tmp_path):
    assert read_metrics(tmp_path / "metrics.jsonl") == []


class Wandb(types.ModuleType):
    """As much of wandb as a run sees; its own needs an account or a directory of its files."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.inits: list[dict] = []
        self.logged: list[tuple[int, dict]] = []
        self.finished = 0

    def init(self, **options):
        self.inits.append(options)
        return self

    def log(self, values: dict, step: int) -> None:
        self.logged.append((step, values))

    def finish(self) -> None:
        self.finished += 1


def test_rows_go_to_wandb(tmp_path, monkeypatch):
    wandb = Wandb()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    for name in (None, "another"):
        with MetricsLog(tmp_path, wandb=WandbLog("project", tmp_path, {"lr": 1.0}, name)) as log:
            log.log("train", 3, loss=0.5, phase="words stay here")
    assert wandb.logged == [(3, {"train/loss": 0.5})] * 2
    assert wandb.finished == 2
    first, second = wandb.inits
    assert (first["project"], first["name"], first["config"]) == ("project", tmp_path.name, {"lr": 1.0})
    assert second["name"] == "another"
    assert first["id"] == second["id"], "a resumed run goes on in its own curves"


def test_an_id_for_wandb_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    """A disk that was full left four of its letters, under which all later processes of the run went on."""
    wandb = Wandb()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4, hard))
    try:
        with pytest.raises(CheckpointError, match="wandb-id: expected to write 17 bytes, got: File too large"):
            WandbLog("project", tmp_path, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(tmp_path.iterdir())
    WandbLog("project", tmp_path, {})
    assert len(wandb.inits[0]["id"]) == 16


def test_wandb_that_is_not_installed_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(InputError, match="needs the package wandb"):
        WandbLog("project", tmp_path, {})
    WandbLog(None, tmp_path, {}).log("train", 1, {"loss": 1.0})
    assert not list(tmp_path.iterdir())


def test_heavy_libraries_wait_until_they_are_used():
    code = (
        "import sys; import fastbert.train.metrics, fastbert.train.plots, fastbert.train.flops, fastbert.optim; "
        "print([m for m in ('tensorboard', 'torch.utils.tensorboard', 'matplotlib', 'tensorflow') if m in sys.modules])"
    )
    root = Path(__file__).resolve().parents[2]
    told = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert told.stdout == "[]\n"
