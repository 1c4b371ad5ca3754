"""One look for the progress of long work, on stderr, so that results on stdout can be piped."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def progress(label: str, total: int | None, unit: str) -> Iterator[Callable[[int], None]]:
    """Shows a bar with rate and time left while the block runs; yields the function that advances it.

    Where stderr is no terminal nothing is drawn: a log full of bars helps nobody.
    """
    from rich import progress as rp
    from rich.console import Console

    columns = [
        rp.TextColumn(label),
        rp.BarColumn(),
        rp.MofNCompleteColumn(),
        rp.TextColumn(unit),
        rp.TimeElapsedColumn(),
    ]
    if total is not None:
        columns.append(rp.TimeRemainingColumn())
    bar = rp.Progress(*columns, console=Console(file=sys.stderr), transient=True, disable=not sys.stderr.isatty())
    with bar:
        task = bar.add_task(label, total=total)
        yield lambda count: bar.advance(task, count)
