"""steps.jsonl: a row for every step, where metrics.jsonl has means over the steps of a line."""

from __future__ import annotations

import os
from pathlib import Path

from .append import Appender
from .engine import LocalEngine
from .metrics import from_line, to_line
from .window import Window


class StepRows:
    """Collects a row a step and writes them when a line or a checkpoint is due: nothing waits for the disk or for
    other ranks in between.

    Args:
        path: of the file; None on a rank that writes nothing.
        last_step: rows after it are dropped, since those steps will be done again.
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
        """Steps from here on are what is added to this window."""
        self._before = window.copy()

    def add(self, step: int, window: Window, **values: float | str) -> None:
        """The window has one more step than at the last call.

        Args:
            values: what else the row says.
        """
        self._pending.append(({"step": step, **values}, window.since(self._before)))
        self.begin(window)

    def flush(self, engine: LocalEngine, peak: float, window: Window) -> None:
        """Writes what has come together, and adds the parts of its time to the window; every rank calls it at the same
        step."""
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
    """Drops the rows after a step, and a line that a crash cut off, from the end of the file backwards."""
    with open(path, "rb+") as file:
        end = file.seek(0, os.SEEK_END)
        while end > 0:
            begin = _line_start(file, end)
            file.seek(begin)
            line = file.read(end - begin)
            try:
                if line.endswith(b"\n") and from_line(line.decode())["step"] <= last_step:
                    break
            except (ValueError, KeyError):
                pass
            end = begin
        file.truncate(end)


def _line_start(file, end: int) -> int:
    """Where the line that ends before ``end`` begins."""
    position, size = end - 1, 4096
    while position > 0:
        first = max(position - size, 0)
        file.seek(first)
        found = file.read(position - first).rfind(b"\n")
        if found >= 0:
            return first + found + 1
        position = first
    return 0
