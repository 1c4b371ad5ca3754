"""steps.jsonl: one row per step, while a row of metrics.jsonl has means over the steps of a line."""

from __future__ import annotations

import os
from pathlib import Path

from .append import Appender
from .engine import LocalEngine
from .metrics import from_line, to_line
from .window import Window


class StepRows:
    """Collects one row per step and writes them when a line or a checkpoint is due, so that steps in between wait
    neither for the disk nor for other ranks.

    Args:
        path: the file; None on a rank that writes nothing.
        last_step: the step of the checkpoint that a run resumes from, or 0; later rows in the file are dropped.
    """

    def __init__(self, path: Path | None, last_step: int) -> None:
        self._path = path
        self._pending: list[tuple[dict, Window]] = []
        self._before = Window()
        if path is not None:
            path.touch()
            _cut(path, last_step)
            self._file = Appender(path)

    def begin(self, window: Window) -> None:
        """Makes the window's current sums the start of the next step's row."""
        self._before = window.copy()

    def add(self, step: int, window: Window, **values: float | str) -> None:
        """Adds the row of a step, from what the window has gained since the last call.

        Args:
            step: its number.
            window: the sums, which include the step.
            values: further values of the row.
        """
        self._pending.append(({"step": step, **values}, window.since(self._before)))
        self.begin(window)

    def flush(self, engine: LocalEngine, peak: float, window: Window) -> None:
        """Writes the collected rows, and adds the times of their parts to the window. All ranks call it at the same
        step.

        Args:
            engine: sums over ranks, and has the times.
            peak: the peak of all ranks, in FLOP/s.
            window: the window of the current line.
        """
        times = engine.timer.seconds()
        for parts in times:
            window.add_parts(parts)
        if not self._pending:
            return
        sums = [value for _, step in self._pending for value in step.sums()]
        ranks = [sum(values) for values in zip(*engine.gather(sums), strict=True)]
        width, lines = len(sums) // len(self._pending), []
        for number, (values, step) in enumerate(self._pending):
            whole = step.with_sums(ranks[number * width : (number + 1) * width])
            parts = times[number] if number < len(times) else {}
            parts = {f"{name}_seconds": seconds for name, seconds in parts.items()}
            lines.append(to_line(values | whole.row(peak) | parts))
        self._pending = []
        if self._path is not None:
            self._file.write("".join(lines))


def _cut(path: Path, last_step: int) -> None:
    """Drops the rows after a step and a line that a crash cut off, reading the file backwards from its end."""
    with open(path, "rb+") as file:
        end = file.seek(0, os.SEEK_END)
        while end > 0:
            begin = _line_start(file, end)
            file.seek(begin)
            line = file.read(end - begin)
            try:
                if line.endswith(b"\n") and from_line(line.decode())["step"] <= last_step:
                    break
            except (ValueError, KeyError, TypeError):
                pass
            end = begin
        file.truncate(end)


def _line_start(file, end: int) -> int:
    """The offset at which the line that ends at ``end`` begins."""
    position, size = end - 1, 4096
    while position > 0:
        first = max(position - size, 0)
        file.seek(first)
        found = file.read(position - first).rfind(b"\n")
        if found >= 0:
            return first + found + 1
        position = first
    return 0
