"""What a run measured: metrics.jsonl, which is the truth, and the same as TensorBoard events."""

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

# JSON has no numbers for these; every reader takes strings.
_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


# No figure of a run comes near it, float32 ends long before; sums and hundredfolds of what is below are numbers still.
_LARGEST = 1e100


def plain(row: dict) -> dict:
    """A row that strict JSON can hold: numbers that are not finite become words."""
    return {
        name: value if not isinstance(value, float) or math.isfinite(value) else json.dumps(value)
        for name, value in row.items()
    }


def to_line(row: dict) -> str:
    """A row as a line of strict JSON, see `plain`."""
    return json.dumps(plain(row), allow_nan=False) + "\n"


def from_line(line: str) -> dict:
    """The row that `to_line` wrote. Raises ValueError for anything else."""
    row = json.loads(line)
    if not isinstance(row, dict):
        raise ValueError(type(row).__name__)
    return {name: _WORDS.get(value, value) if isinstance(value, str) else value for name, value in row.items()}


def read_metrics(path: str | os.PathLike, numbers: Collection[str] = ()) -> list[dict]:
    """The rows of a metrics.jsonl; a last line that a crash cut off is left out. So is any other that is no row, with a
    warning: such files are edited by hand.

    Args:
        numbers: values that must be numbers, where a row has them.
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
    """Raises ValueError for a row without its kind or step, or with something else for a number, or one of no run."""
    kinds = {"kind": str, "step": int, **dict.fromkeys(row.keys() & set(numbers), (int, float))}
    for name, kind in kinds.items():
        if not isinstance(row.get(name), kind):
            raise ValueError(f"{row[name]!r:.50} as its {name}" if name in row else f"one without its {name}")
        if kind is not str and _LARGEST < abs(row[name]) < math.inf:
            raise ValueError(f"{row[name]!r:.50} as its {name}")


@contextlib.contextmanager
def _without_tracebacks_of_events() -> Iterator[None]:
    """While the block runs Python prints nothing of an error of the system that ends the thread of TensorBoard which
    writes events: the next call to the writer raises it again."""
    before = threading.excepthook

    def hook(ended) -> None:
        if type(ended.thread).__name__ != "_AsyncWriterThread" or not isinstance(ended.exc_value, OSError):
            before(ended)

    threading.excepthook = hook
    try:
        yield
    finally:
        if threading.excepthook is hook:  # and not another run's, which began meanwhile
            threading.excepthook = before


class MetricsLog:
    """Appends rows to ``run_dir/metrics.jsonl`` and ``run_dir/tensorboard``.

    Args:
        run_dir: an existing directory.
        resume_step: the step that training goes on from; rows after it are dropped, since those steps will be done
            again. None begins an empty log.
        again: kinds of rows of that step itself that will be made again: of an evaluation that a signal had ended.
        wandb: gets the rows too.

    Raises:
        CheckpointError: metrics.jsonl cannot be written; what was there stays.
    """

    def __init__(
        self,
        run_dir: str | os.PathLike,
        resume_step: int | None = None,
        wandb: WandbLog | None = None,
        *,
        again: Collection[str] = (),
    ) -> None:
        self._path = Path(run_dir) / "metrics.jsonl"
        self._events_dir = Path(run_dir) / "tensorboard"
        self._resume_step = resume_step
        rows = [] if resume_step is None else read_metrics(self._path)
        kept = [r for r in rows if r["step"] < resume_step or (r["step"] == resume_step and r["kind"] not in again)]
        write_whole(self._path, "".join(map(to_line, kept)), CheckpointError)
        self._rows = kept
        self._file = Appender(self._path)
        self._writer = None
        self._open = contextlib.ExitStack()
        self._wandb = wandb

    def __enter__(self) -> MetricsLog:
        # TensorFlow, where it is installed, would print a page of its own.
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
        """TensorBoard's events are a copy: where they cannot be written, a full disk say, the run goes on without."""
        try:
            yield
        except OSError as error:
            self._writer = None
            _log.warning("%s gets no more events: %s; metrics.jsonl has all rows", self._events_dir, error.strerror)

    def _wait_for_a_later_second(self) -> None:
        # TensorBoard reads event files in the order of their names, which begin with a time in whole seconds. Two
        # files of one second would be ordered by the digits of a process id and a counter, and the purge of a resumed
        # run would then hide the wrong rows.
        seconds = [path.name.split(".")[3] for path in self._events_dir.glob("events.out.tfevents.*")]
        newest = max((int(second) for second in seconds if second.isdecimal()), default=0)
        while int(now := time.time()) == newest:
            time.sleep(newest + 1 - now)  # of one look at the clock: a second one may be past that second

    def log(self, kind: str, step: int, **values: float | int | str) -> None:
        """Adds a row {kind, step, values...} at once; on a full disk, as soon as there is room."""
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
        """All rows so far, those before a resume too."""
        return list(self._rows)


class NoLog:
    """In place of a `MetricsLog` where another rank writes."""

    def __enter__(self) -> NoLog:
        return self

    def __exit__(self, *_exception) -> None:
        pass

    def log(self, kind: str, step: int, **values: float | int | str) -> None:
        pass

    def rows(self) -> list[dict]:
        return []
