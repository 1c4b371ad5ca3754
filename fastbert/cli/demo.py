"""``fastbert demo``: trains and uses a small BERT, without a download."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import arg

from ..wording import duration
from ._paths import OutputPath


@dataclass(kw_only=True)
class Demo:
    """Trains a vocabulary and a small BERT on the documentation that comes with Python, and shows what it learned.

    Two to eight minutes on two cores. OUT holds report.html, data/ (token shards), run/ (the pre-training run with
    the model) and demo.json (the figures).

    Example:
        fastbert demo
        fastbert demo --quick
    """

    quick: bool = False
    """A run of a minute or two: every stage, but too little training to reach the documented figures."""
    out: Annotated[OutputPath, arg(metavar="OUT")] = Path("fastbert-demo")
    """The directory to make; an earlier demo in it is replaced."""
    seed: int = 0
    """Seed of everything random."""


def run(args: Demo) -> None:
    """Runs the demo, prints its figures and writes the report."""
    began = time.monotonic()
    from ..demo.page import write_page
    from ..demo.run import run_demo

    result = run_demo(args.out, args.quick, args.seed)
    page = write_page(result)
    print(f"\nthe whole demo took {duration(time.monotonic() - began)}")
    for path in (result.run.model_dir, args.out / "data", args.out / "demo.json", page):
        print(path)
