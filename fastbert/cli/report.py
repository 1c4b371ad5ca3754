"""``fastbert report``: compares pre-training runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from ._paths import InputPath, OutputPath


@dataclass
class Report:
    """Compares pre-training runs: figures, options in which they differ, and curves in one page.

    Runs that are still in progress or were killed can be compared too.

    Example:
        fastbert report RUN
        fastbert report RUN1 RUN2 --out compare.html
    """

    runs: Positional[Annotated[list[InputPath], arg(metavar="RUN [RUN ...]", help_behavior_hint="(required)")]]
    """Run directories of `fastbert pretrain`."""
    out: Annotated[OutputPath | None, arg(metavar="FILE")] = None
    """The page to write; by default RUN/report.html for one run, report.html for several."""


def run(args: Report) -> None:
    """Prints the table of the runs and what differs between them, and writes the report."""
    from ..train.run_report import differences, read_runs, table, write_report
    from ..wording import figure
    from ._tables import print_table

    runs = read_runs(args.runs)
    header, lines = table(runs)
    print_table([header, *([figure(value) for value in line] for line in lines)])
    header, lines = differences(runs)
    if lines:
        print("\noptions that differ")
        print_table([header, *lines])
    path = args.out or (args.runs[0] if len(runs) == 1 else Path()) / "report.html"
    print(write_report(runs, path))
