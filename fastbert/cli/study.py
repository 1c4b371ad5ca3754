"""``fastbert study``: repeats the paper's ablations at a chosen scale."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from ..errors import InputError
from ..hardware import MOST_PROCESSES
from ..wording import counted
from ._options import command_line
from ._paths import InputPath, OutputPath


@dataclass(kw_only=True)
class Study:
    """Repeats a study of the BERT paper on a small scale: pre-trains, fine-tunes, reports beside the paper's figures.

    It may be stopped at any time, and the same command then continues it. OUT/NAME-SCALE holds report.md, report.html,
    results.json and the curves; pre-trained models are in the cache, which all studies share.

    Example:
        fastbert study table5 --scale smoke --data-dir TASKS
        fastbert study all --scale small --data-dir TASKS --jobs 2 --plan
        fastbert study list
        fastbert study my.yaml --corpus books.txt --data-dir TASKS
    """

    names: Positional[Annotated[tuple[str, ...], arg(metavar="NAME...", help_behavior_hint="(required)")]]
    """Studies that come with fastbert (all = all of them, list = show them), or YAML files of your own."""
    scale: Literal["smoke", "small", "base"] = "smoke"
    """smoke runs every stage in a minute or two and learns nothing; small takes hours on a CPU; base is the paper's
    size, for GPUs."""
    data_dir: Annotated[InputPath | None, arg(metavar="DIR")] = None
    """Directory of the tasks' files; docs/studies.md lists the files."""
    corpus: Annotated[tuple[InputPath, ...], arg(metavar="FILE...")] = ()
    """Text files to pre-train on; by default the documentation that comes with Python."""
    seeds: tuple[int, ...] = ()
    """Seeds to run; by default the study's own."""
    jobs: int = 1
    """How many pre-trainings and fine-tunings run in parallel, each in its own process; the results are the same."""
    threads: int = 1
    """Threads of each job."""
    plan: bool = False
    """Print the tokens and the time of every row and the total, by speeds measured here, and do not run."""
    out: Annotated[OutputPath, arg(metavar="OUT")] = Path("fastbert-studies")
    """The directory of the reports, each in a directory NAME-SCALE."""
    cache: Annotated[OutputPath | None, arg(metavar="DIR")] = None
    """The directory for prepared data, pre-trained models and finished cells; OUT/cache by default."""


def run(args: Study) -> None:
    """Runs the studies and writes their reports, or prints their plan."""
    from ..study import spec

    if not args.names:
        raise InputError(f"expected a study, got none; there are {', '.join(spec.names())}")
    if args.names == ("list",):
        _list(spec)
        return
    for name in ("jobs", "threads"):
        if not 1 <= getattr(args, name) <= MOST_PROCESSES:
            raise InputError(f"{name} must be between 1 and {MOST_PROCESSES}, got {getattr(args, name)}")
    studies = _read(args)
    from ..result_files import check_writable
    from ..study import plan
    from ..study import run as runner

    works = runner.together([runner.work_of(study, args.cache or args.out / "cache") for study in studies])
    if args.plan:
        with runner.with_threads(args.threads):
            print(plan.text(works, args.jobs))
        return
    for study in studies:
        check_writable(_report(args, study) / "results.json")
    for work in works:
        _run(args, work)
    if len(works) > 1:
        _print_total(works)


def _read(args: Study) -> list:
    """The studies to run. Raises InputError if two would have the same report."""
    from ..study import spec

    paths = [spec.find(name) for name in (spec.names() if args.names == ("all",) else args.names)]
    given = {
        "data_dir": None if args.data_dir is None else str(args.data_dir),
        "corpus": tuple(map(str, args.corpus)) or None,
        "seeds": args.seeds or None,
    }
    studies = [spec.read(path, args.scale, **given) for path in paths]
    places = [_report(args, study) for study in studies]
    for number, place in enumerate(places):
        if place in places[:number]:
            raise InputError(f"expected studies of different names, got two whose report would be {place}")
    return studies


def _print_total(works: list) -> None:
    from ..study import results

    took = results.spent(works)
    hours, worked = took["seconds"] / 3600, took["processor_seconds"] / 3600
    print(f"{len(works)} studies: {hours:.2f} hours of one process, processor time {worked:.2f} hours")


def _report(args: Study, study) -> Path:
    """The directory of a study's report."""
    return args.out / f"{study.name}-{study.scale}"


def _run(args: Study, work) -> None:
    """Runs one study and writes its report."""
    from ..study import page, results, senses
    from ..study import run as runner
    from ._progress import progress

    study, left = work.study, sum(map(len, work.missing))
    try:
        with progress(study.name, left, "trainings") as advance:

            def done(line: str) -> None:
                print(line, flush=True)
                advance(1)

            def begins(name: str) -> None:
                advance(0, label=f"{study.name}: {name}")
                if not sys.stderr.isatty():
                    print(f"{study.name}: {name} begins", file=sys.stderr, flush=True)

            runner.execute(work, jobs=args.jobs, threads=args.threads, say=done, begins=begins)
    except (KeyboardInterrupt, SystemExit):
        models, cells = work.missing
        left = f"{counted(len(models), 'pre-training')} and {counted(len(cells), 'fine-tuning')} are left"
        print(f"{study.name}: {left}; the same command goes on from here", file=sys.stderr)
        raise
    out = _report(args, study)
    found = results.collect(work, command_line())
    if study.polysemy:
        with runner.with_threads(args.threads):
            found["polysemy"] = senses.measure(work, out)
    written = page.write(found, out)
    for column in found["columns"]:
        print(f"{column['column']}: {found['orders'][column['column']]}")
    for path in written:
        print(path)


def _list(spec) -> None:
    names = spec.names()
    width = max(map(len, names))
    for name in names:
        print(f"{name:<{width}}  {spec.read(spec.find(name), 'smoke').title}")
