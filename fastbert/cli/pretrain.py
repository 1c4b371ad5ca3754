"""``fastbert pretrain``: masked LM and next-sentence prediction on prepared data."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

from tyro.conf import Suppress, arg

from ..errors import InputError
from ..train import recipes
from ..train.config import PretrainConfig
from ..train.phase_options import Phase
from ..wording import counted, duration
from ._options import option, refuse_given
from ._paths import InputName, InputPath, OutputName

_PATHS = ("data", "cache", "out", "model", "deepspeed", "resume")


@dataclass(kw_only=True)
class Pretrain(PretrainConfig):
    """Pre-trains a BERT on the shards that `fastbert prepare` made; Ctrl-C saves, --resume auto continues.

    OUT holds config.yaml, metrics.jsonl, tensorboard/, checkpoints/, report.html, loss.png and model/, a Hugging Face
    directory of the model with the least held-out loss.

    Example:
        fastbert pretrain --data DATA --model 4x256 --steps 10000 --lr 5e-4 --out RUN
        fastbert pretrain --recipe nvlamb --data DATA --out RUN
        fastbert pretrain --recipe nvlamb --plan --plan-ranks 64 --plan-throughput 260000
        fastbert pretrain --config RUN/config.yaml --resume auto
    """

    recipe: Annotated[str | None, arg(metavar="NAME")] = None
    """Options of a recipe that comes with fastbert; list = show which there are. Options given here win."""
    config: Annotated[InputPath | None, arg(metavar="FILE")] = None
    """A YAML file of options; those given on the command line win."""
    plan: bool = False
    """Print what the run comes to, and do not run: steps, tokens, memory of a rank by part, time."""
    plan_ranks: int = 1
    """With --plan: processes that train together, each with a device of its own."""
    plan_throughput: str | None = None
    """With --plan: tokens a second of one rank, from which the time follows; measure = take a few steps here."""
    # Paths, which the recipe has as texts.
    data: InputName = ""
    out: OutputName = ""
    deepspeed: InputName | None = None
    resume: InputName | None = None
    phases: Suppress[tuple[Phase, ...]] = ()

    def __post_init__(self) -> None:
        """Options are checked in `run`: tyro would wrap the sentence in a box of its own."""


def _value_of(name: str, argv: Sequence[str]) -> str | None:
    """What the command line gives for an option."""
    for position, word in enumerate(argv):
        found, equals, value = word.partition("=")
        following = argv[position + 1 : position + 2]
        if found == name and (equals or (following and not following[0].startswith("--"))):
            return value if equals else following[0]
    return None


def _file(recipe: str | None, config: str | Path | None) -> Path | None:
    """Where options come from that the command line does not give."""
    if recipe is not None and config is not None:
        raise InputError("expected --recipe or --config, got both")
    if recipe is not None:
        return None if recipe == "list" else recipes.path(recipe)
    return Path(config) if config else None  # an empty text is refused where all paths are


def defaults(argv: Sequence[str]) -> Pretrain | None:
    """The options of the file of --config or --recipe, which the command line may change."""
    recipe, config = _value_of("--recipe", argv), _value_of("--config", argv)
    path = _file(recipe, config)
    if path is None:
        return None
    base = PretrainConfig.from_yaml(path)
    given = {f.name: getattr(base, f.name) for f in fields(PretrainConfig)}
    return Pretrain(**given, config=None if config is None else path, recipe=recipe)


def _check_reach(config: PretrainConfig, base: PretrainConfig) -> None:
    """Raises InputError for an option that every phase of the file has a value of its own for."""
    for name in ("lr", "schedule", "token_budget", "accumulate"):
        own = [getattr(phase, name) is not None for phase in config.phases]
        if name == "accumulate":
            own = [phase.batch_sequences or phase.batch_tokens or phase.accumulate for phase in config.phases]
        if config.phases and all(own) and getattr(config, name) != getattr(base, name):
            raise InputError(
                f"{option(name)} {getattr(config, name)} would change nothing: every phase of the file "
                "says its own; copy the file and change it there"
            )


def _check_moved(args: Pretrain) -> None:
    """Raises InputError where the options of a run are to go on that has another name now: it would start anew, under
    the old one."""
    if args.resume != "auto" or args.config is None:
        return
    run, said = args.config.parent, PretrainConfig.from_yaml(args.config).out
    out = Path(os.path.expanduser(said))
    if args.out == said and (run / "checkpoints").is_dir() and not (out / "checkpoints").is_dir():
        raise InputError(
            f"{args.config} says out: {out}, where no run is to go on with, and lies in one: --out {run} continues it"
        )


def _plan(args: Pretrain, config: PretrainConfig) -> None:
    """Prints what the run comes to."""
    throughput = args.plan_throughput
    if throughput not in (None, "measure"):
        try:
            throughput = float(throughput)
        except ValueError:
            throughput = 0.0
        if not 0 < throughput < float("inf"):
            raise InputError(f"--plan-throughput must be tokens a second or measure, got {args.plan_throughput!r}")
    if args.plan_ranks < 1:
        raise InputError(f"--plan-ranks must be at least 1, got {args.plan_ranks}")
    from ..train import plan_text
    from ..train.model_and_data import open_data
    from ..train.plan import make_plan

    data = open_data(config)[0] if config.data else None
    print(plan_text.text(make_plan(config, data=data, ranks=args.plan_ranks, throughput=throughput)))


def run(args: Pretrain) -> None:
    """Pre-trains, or prints the plan of a run (--plan) or the recipes there are (--recipe list)."""
    if args.recipe == "list":
        width = max(map(len, recipes.names()))
        for name in recipes.names():
            print(f"{name:<{width}}  {recipes.summary(name)}")
        return
    if not args.plan:
        refuse_given(args, "plan_ranks", "plan_throughput", because="--plan, got it without, which would train")
    given = {f.name: getattr(args, f.name) for f in fields(PretrainConfig)}
    # No shell has seen a ~ that stands in a file of options.
    given |= {name: os.path.expanduser(given[name]) for name in _PATHS if given[name]}
    config = PretrainConfig(**given)
    if config.phases:
        _check_reach(config, PretrainConfig.from_yaml(_file(args.recipe, args.config)))
    if args.plan:
        _plan(args, config)
        return
    _check_moved(args)
    from ..train.pretrain import pretrain

    result = pretrain(config)
    if not result.paths:  # of a rank that writes nothing
        return
    if result.interrupted:
        print(f"stopped by {result.interrupted} after step {result.steps}; go on with --resume auto")
    print(f"{counted(result.steps, 'step')}, {counted(result.tokens, 'token')} in {duration(result.seconds)}")
    for path in result.paths:
        print(path)
