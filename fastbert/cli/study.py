"""``fastbert study``: the paper's ablations at the scale asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg


@dataclass(kw_only=True)
class Study:
    """Repeats a study of the BERT paper in miniature: pre-trains its rows, fine-tunes them, reports beside the paper.

    Killed at any moment, the same command goes on where it was. OUT holds report.md, report.html, results.json and the
    curves; pre-trained models are in the cache, shared by all studies.

    Example:
        fastbert study table5 --scale smoke --data-dir DATA
        fastbert study table8 --scale small --data-dir DATA --jobs 2 --plan
        fastbert study list
        fastbert study my.yaml --corpus books.txt --data-dir DATA
    """

    name: Positional[Annotated[str, arg(metavar="NAME")]]
    """A study that comes with fastbert, a YAML file of your own, or list: show which there are."""
    scale: Literal["smoke", "small", "base"] = "smoke"
    """smoke runs to the end in a minute or two and shows the way; small takes hours on a processor; base is the paper's
    size, for GPUs."""
    data_dir: Annotated[Path | None, arg(metavar="DIR")] = None
    """Where the files of tasks are; their paths below it are in defaults.yaml."""
    corpus: Annotated[tuple[Path, ...], arg(metavar="FILE...")] = ()
    """Text files to pre-train on, in place of the study's: the documentation that comes with Python."""
    seeds: tuple[int, ...] = ()
    """Seeds in place of the study's."""
    jobs: int = 1
    """How many pre-trainings and fine-tunings run side by side, each in a process of its own; results are the same."""
    threads: int = 1
    """Threads of each."""
    plan: bool = False
    """Print tokens and hours of every row and of all, from rates measured here, and do not run."""
    out: Annotated[Path | None, arg(metavar="OUT")] = None
    """Where the report goes; fastbert-studies/NAME-SCALE by default."""
    cache: Annotated[Path, arg(metavar="DIR")] = Path("fastbert-studies/cache")
    """Where prepared data, pre-trained models and finished cells are kept."""


def run(args: Study) -> None:
    from ..errors import InputError
    from ..study import spec

    if args.name == "list":
        _list(spec)
        return
    if args.jobs < 1 or args.threads < 1:
        raise InputError(f"jobs and threads must be at least 1, got {args.jobs} and {args.threads}")
    path = spec.find(args.name)
    given = {
        "data_dir": None if args.data_dir is None else str(args.data_dir),
        "corpus": tuple(map(str, args.corpus)) or None,
        "seeds": args.seeds or None,
    }
    study = spec.read(path, args.scale, **given)
    from ..study import page, results
    from ..study import plan as planning
    from ..study import run as runner

    work = runner.work_of(study, args.cache)
    if args.plan:
        with runner.with_threads(args.threads):
            print(planning.text(planning.make_plan(work), work, args.jobs))
        return
    runner.execute(work, jobs=args.jobs, threads=args.threads, say=lambda line: print(line, flush=True))
    out = args.out or Path("fastbert-studies") / f"{study.name}-{study.scale}"
    found = results.collect(work, _command())
    paths = page.write(found, path.read_text(encoding="utf-8"), out)
    for column in found["columns"]:
        print(f"{column['column']}: {found['orders'][column['column']]}")
    for path in paths:
        print(path)


def _list(spec) -> None:
    names = spec.names()
    width = max(map(len, names))
    for name in names:
        print(f"{name:<{width}}  {spec.read(spec.find(name), 'smoke').title}")


def _command() -> str:
    """What was typed."""
    import shlex
    import sys

    return shlex.join(["fastbert", *sys.argv[1:]])
