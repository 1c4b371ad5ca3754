"""What a run measured: metrics.jsonl, which is the truth, and the same as TensorBoard events."""

from __future__ import annotations

import json
import logging
import os
import time
from pathlib import Path

from .checkpoint import write_text


def read_metrics(path: str | os.PathLike) -> list[dict]:
    """The rows of a metrics.jsonl; a last line that a crash cut off is left out."""
    path = Path(path)
    if not path.exists():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return rows


class MetricsLog:
    """Appends rows to ``run_dir/metrics.jsonl`` and ``run_dir/tensorboard``.

    Args:
        run_dir: an existing directory.
        resume_step: the step that training goes on from; rows after it are dropped, since those steps will be done
            again. None begins an empty log.
    """

    def __init__(self, run_dir: str | os.PathLike, resume_step: int | None = None) -> None:
        self._path = Path(run_dir) / "metrics.jsonl"
        self._events_dir = Path(run_dir) / "tensorboard"
        self._resume_step = resume_step
        kept = [] if resume_step is None else [row for row in read_metrics(self._path) if row["step"] <= resume_step]
        write_text(self._path, "".join(json.dumps(row) + "\n" for row in kept))
        self._rows = kept
        self._file = None
        self._writer = None

    def __enter__(self) -> MetricsLog:
        # TensorFlow, where it is installed, would print a page of its own.
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        logging.getLogger("tensorboard").setLevel(logging.ERROR)
        from torch.utils.tensorboard import SummaryWriter

        purge = None if self._resume_step is None else self._resume_step + 1
        self._wait_for_a_later_second()
        self._writer = SummaryWriter(str(self._events_dir), purge_step=purge)
        self._file = open(self._path, "a", encoding="utf-8")
        return self

    def __exit__(self, *_exception) -> None:
        self._file.close()
        self._writer.close()

    def _wait_for_a_later_second(self) -> None:
        # TensorBoard reads event files in the order of their names, which begin with a time in whole seconds. Two
        # files of one second would be ordered by the digits of a process id and a counter, and the purge of a resumed
        # run would then hide the wrong rows.
        seconds = [path.name.split(".")[3] for path in self._events_dir.glob("events.out.tfevents.*")]
        newest = max((int(second) for second in seconds if second.isdecimal()), default=0)
        if int(time.time()) == newest:
            time.sleep(newest + 1 - time.time())

    def log(self, kind: str, step: int, **values: float | int | str) -> None:
        """Adds a row {kind, step, values...} and flushes it."""
        row = {"kind": kind, "step": step, **values}
        self._rows.append(row)
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()
        for name, value in values.items():
            if isinstance(value, int | float):
                self._writer.add_scalar(f"{kind}/{name}", value, step)

    def rows(self) -> list[dict]:
        """All rows so far, those before a resume too."""
        return list(self._rows)
