"""Progress bars of long work, on stderr, so that results on stdout can be piped."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ..parquet_files import SUFFIXES as PARQUET


@contextlib.contextmanager
def progress(label: str, total: int | None, unit: str) -> Iterator[Callable[..., None]]:
    """Shows a bar with the time left while the block runs; yields ``advance(count, total=None, label=None)``.

    Nothing is drawn if stderr is not a terminal: bars would only fill a log.
    """
    from rich import progress as rp
    from rich.console import Console

    columns = [
        rp.TextColumn("{task.description}", markup=False),
        rp.BarColumn(),
        rp.MofNCompleteColumn(),
        rp.TextColumn(unit),
    ]
    bar = rp.Progress(
        *columns,
        rp.TimeElapsedColumn(),
        rp.TimeRemainingColumn(),
        console=Console(file=sys.stderr),
        transient=True,
        disable=not sys.stderr.isatty(),
        # Lines that are printed meanwhile go above the bar, if both are on the same screen.
        redirect_stdout=sys.stdout.isatty(),
    )
    with contextlib.nullcontext() if bar.disable else bar:  # before rich 14.3, a disabled bar prints an empty line
        task = bar.add_task(label, total=total)

        def advance(count: int, total: int | None = None, label: str | None = None) -> None:
            bar.update(task, advance=count, total=total, description=label)

        yield advance


@contextlib.contextmanager
def corpus_progress(label: str, files: Sequence[Path]) -> Iterator[Callable[[int], None]]:
    """A bar in megabytes of text; yields a function that takes a number of bytes. There is no total for .gz and Parquet
    files, since the size of their text is unknown."""
    known = not any(file.suffix.lower() in (".gz", *PARQUET) for file in files)
    total = sum(file.stat().st_size for file in files) // 1_000_000 if known else None
    with progress(label, total, "MB") as advance:
        done = 0

        def advance_bytes(count: int) -> None:
            nonlocal done
            before, done = done // 1_000_000, done + count
            if done // 1_000_000 > before:
                advance(done // 1_000_000 - before)

        yield advance_bytes
