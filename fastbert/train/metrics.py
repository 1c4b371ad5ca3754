"""The log of a run's metrics: metrics.jsonl, the complete record, and a copy as TensorBoard events."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import threading
import time
from collections.abc import Collection, Iterator
from pathlib import Path

from ..errors import CheckpointError
from ..files import write_whole
from .append import Appender
from .wandb_log import WandbLog

_log = logging.getLogger("fastbert")

# Strict JSON has no numbers for these, so they are strings.
_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


# Far above float32's range, and small enough for sums and percentages of such values to stay finite.
_LARGEST = 1e100


def plain(row: dict) -> dict:
    """The row for strict JSON: floats that are not finite become strings."""
    return {
        name: value if not isinstance(value, float) or math.isfinite(value) else json.dumps(value)
        for name, value in row.items()
    }


def to_line(row: dict) -> str:
    """A row as a line of strict JSON (see `plain`)."""
    return json.dumps(plain(row), allow_nan=False) + "\n"


def from_line(line: str) -> dict:
    """The row that `to_line` wrote. Raises ValueError for anything else."""
    row = json.loads(line)
    if not isinstance(row, dict):
        raise ValueError(type(row).__name__)
    return {name: _WORDS.get(value, value) if isinstance(value, str) else value for name, value in row.items()}


def read_metrics(path: str | os.PathLike, numbers: Collection[str] = ()) -> list[dict]:
    """The rows of a metrics.jsonl; empty if there is no such file. A last line that a crash cut off is skipped. So is,
    with a warning, any other line that is not a row, since such files are sometimes edited by hand.

    Args:
        path: the file.
        numbers: names of the values that must be numbers in rows that have them.
    """
    path = Path(path)
    if not path.exists():
        return []
    rows = []
    *lines, last = path.read_text(encoding="utf-8", errors="replace").split("\n")
    for number, line in enumerate((*lines, last), 1):
        if not line.strip():
            continue
        try:
            row = from_line(line)
            _check_row(row, numbers)
            rows.append(row)
        except ValueError as error:
            if number <= len(lines):
                _log.warning("%s, line %d is left out: expected a row of metrics, got %s", path, number, error)
    return rows


def _check_row(row: dict, numbers: Collection[str]) -> None:
    """Raises ValueError for a row without kind or step, or with something else in place of a (reasonable) number."""
    kinds = {"kind": str, "step": int, **dict.fromkeys(row.keys() & set(numbers), (int, float))}
    for name, kind in kinds.items():
        if not isinstance(row.get(name), kind):
            raise ValueError(f"{row[name]!r:.50} as its {name}" if name in row else f"one without its {name}")
        if kind is not str and _LARGEST < abs(row[name]) < math.inf:
            raise ValueError(f"{row[name]!r:.50} as its {name}")


@contextlib.contextmanager
def _without_tracebacks_of_events() -> Iterator[None]:
    """While the block runs, no traceback is printed if an OSError ends TensorBoard's writer thread: the next call of
    the writer raises it again."""
    before = threading.excepthook

    def hook(ended) -> None:
        if type(ended.thread).__name__ != "_AsyncWriterThread" or not isinstance(ended.exc_value, OSError):
            before(ended)

    threading.excepthook = hook
    try:
        yield
    finally:
        if threading.excepthook is hook:  # not if another run in this process has set its own meanwhile
            threading.excepthook = before


class MetricsLog:
    """Appends rows to ``run_dir/metrics.jsonl`` and ``run_dir/tensorboard``.

    Args:
        run_dir: an existing directory.
        resume_step: the step that training resumes from; rows after it are dropped, since those steps are repeated.
            None starts an empty log.
        wandb: gets the rows too.
        again: kinds of rows that are dropped at ``resume_step`` itself, such as an evaluation that is repeated because
            a signal interrupted it.
        numbers: as in `read_metrics`, for the rows that are there already.

    Raises:
        CheckpointError: metrics.jsonl cannot be written; it is left as it was.
    """

    def __init__(
        self,
        run_dir: str | os.PathLike,
        resume_step: int | None = None,
        wandb: WandbLog | None = None,
        *,
        again: Collection[str] = (),
        numbers: Collection[str] = (),
    ) -> None:
        self._path = Path(run_dir) / "metrics.jsonl"
        self._events_dir = Path(run_dir) / "tensorboard"
        self._resume_step = resume_step
        rows = [] if resume_step is None else read_metrics(self._path, numbers)
        kept = [r for r in rows if r["step"] < resume_step or (r["step"] == resume_step and r["kind"] not in again)]
        write_whole(self._path, "".join(map(to_line, kept)), CheckpointError)
        self._rows = kept
        self._file = Appender(self._path)
        self._writer = None
        self._open = contextlib.ExitStack()
        self._wandb = wandb

    def __enter__(self) -> MetricsLog:
        # If TensorFlow is installed, TensorBoard imports it, and it would print a page of messages.
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        logging.getLogger("tensorboard").setLevel(logging.ERROR)
        from torch.utils.tensorboard import SummaryWriter

        self._open.enter_context(_without_tracebacks_of_events())
        purge = None if self._resume_step is None else self._resume_step + 1
        self._wait_for_a_later_second()
        with self._forgiving():
            self._writer = SummaryWriter(str(self._events_dir), purge_step=purge)
        return self

    def __exit__(self, *_exception) -> None:
        self._file.write()
        with self._open, self._forgiving():
            if self._writer is not None:
                self._writer.close()
        if self._wandb is not None:
            self._wandb.close()

    @contextlib.contextmanager
    def _forgiving(self) -> Iterator[None]:
        """TensorBoard's events are only a copy: if they cannot be written, as on a full disk, the run continues."""
        try:
            yield
        except OSError as error:
            self._writer = None
            _log.warning("%s gets no more events: %s; metrics.jsonl has all rows", self._events_dir, error.strerror)

    def _wait_for_a_later_second(self) -> None:
        # TensorBoard reads event files in the order of their names, which begin with a time in whole seconds. Two files
        # of the same second would be ordered by host, process id and a counter, and the purge_step of a resumed run
        # might then hide the wrong rows.
        seconds = [path.name.split(".")[3] for path in self._events_dir.glob("events.out.tfevents.*")]
        newest = max((int(second) for second in seconds if second.isdecimal()), default=0)
        while int(now := time.time()) == newest:
            time.sleep(newest + 1 - now)  # never negative, as it might be if the clock were read twice

    def log(self, kind: str, step: int, **values: float | int | str) -> None:
        """Adds a row {kind, step, values...}, which is written at once; on a full disk, as soon as there is room."""
        row = {"kind": kind, "step": step, **values}
        self._rows.append(row)
        self._file.write(to_line(row))
        with self._forgiving():
            for name, value in values.items():
                if isinstance(value, int | float) and self._writer is not None:
                    self._writer.add_scalar(f"{kind}/{name}", value, step)
        if self._wandb is not None:
            self._wandb.log(kind, step, values)

    def rows(self) -> list[dict]:
        """All rows so far, including those from before a resume."""
        return list(self._rows)


class NoLog:
    """Takes the place of a `MetricsLog` on ranks that do not write."""

    def __enter__(self) -> NoLog:
        return self

    def __exit__(self, *_exception) -> None:
        pass

    def log(self, kind: str, step: int, **values: float | int | str) -> None:
        pass

    def rows(self) -> list[dict]:
        return []
