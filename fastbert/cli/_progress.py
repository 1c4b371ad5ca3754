"""One look for the progress of long work, on stderr, so that results on stdout can be piped."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def progress(label: str, total: int | None, unit: str) -> Iterator[Callable[..., None]]:
    """Shows a bar with the time left while the block runs; yields ``advance(count, total=None)``.

    Where stderr is no terminal nothing is drawn: a log full of bars helps nobody.
    """
    from rich import progress as rp
    from rich.console import Console

    columns = [rp.TextColumn(label), rp.BarColumn(), rp.MofNCompleteColumn(), rp.TextColumn(unit)]
    bar = rp.Progress(
        *columns,
        rp.TimeElapsedColumn(),
        rp.TimeRemainingColumn(),
        console=Console(file=sys.stderr),
        transient=True,
        disable=not sys.stderr.isatty(),
        # Lines printed meanwhile go above the bar, but only where both are on one screen.
        redirect_stdout=sys.stdout.isatty(),
    )
    with bar:
        task = bar.add_task(label, total=total)

        def advance(count: int, total: int | None = None) -> None:
            bar.update(task, advance=count, total=total)

        yield advance
