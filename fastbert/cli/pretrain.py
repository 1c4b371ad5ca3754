"""``fastbert pretrain``: pre-trains by masked LM and next-sentence prediction on prepared data."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Suppress, arg

from ..errors import InputError
from ..train import recipes
from ..train.config import PretrainConfig
from ..train.phase_options import Phase
from ..wording import counted, duration
from ._options import option, refuse_given, value_of
from ._paths import InputName, InputPath, OutputName

_PATHS = ("data", "cache", "out", "model", "deepspeed", "resume")


@dataclass(kw_only=True)
class Pretrain(PretrainConfig):
    """Pre-trains a BERT on the shards that `fastbert prepare` made; Ctrl-C saves, --resume auto continues.

    OUT holds config.yaml, metrics.jsonl, tensorboard/, checkpoints/, report.html, loss.png and model/, a Hugging Face
    directory of the model with the least held-out loss.

    Example:
        fastbert pretrain --data DATA --model 4x256 --init small --steps 10000 --lr 1e-3 --warmup 0.1 --out RUN
        fastbert pretrain --recipe nvlamb --data DATA --out RUN
        fastbert pretrain --recipe nvlamb --plan --plan-ranks 64 --plan-throughput 260000
        fastbert pretrain --config RUN/config.yaml --resume auto
        fastbert pretrain --data DATA --model DIR --evaluate heldout
    """

    recipe: Annotated[str | None, arg(metavar="NAME")] = None
    """A recipe that comes with fastbert, whose options the command line overrides; list = show the recipes."""
    config: Annotated[InputPath | None, arg(metavar="FILE")] = None
    """A YAML file of options, which the command line overrides."""
    plan: bool = False
    """Print the plan of the run (steps, tokens, memory of a rank by part, time) and do not run it."""
    plan_ranks: int = 1
    """With --plan: the number of processes that train together, each on its own device."""
    plan_throughput: str | None = None
    """With --plan: tokens a second of one rank, from which the time follows; "measure" takes a few steps here."""
    evaluate: Literal["heldout", "train"] | None = None
    """Print the losses of the model in --model on all documents of this split, as JSON, and train nothing. Pairs and
    masks depend on the --samples options alone, not on --token-budget. The evaluations of a run print the same if
    --eval-tokens covers the split. train is every document of data that were prepared without --heldout."""
    # Paths, which are strings in the recipe.
    data: InputName = ""
    out: OutputName = ""
    deepspeed: InputName | None = None
    resume: InputName | None = None
    phases: Suppress[tuple[Phase, ...]] = ()

    def __post_init__(self) -> None:
        """Does nothing: options are checked in `run`, since tyro would put a box around the message."""


def _file(recipe: str | None, config: str | Path | None) -> Path | None:
    """The file with the defaults of the options, if any."""
    if recipe is not None and config is not None:
        raise InputError("expected --recipe or --config, got both")
    if recipe is not None:
        return None if recipe == "list" else recipes.path(recipe)
    return Path(config) if config else None  # an empty string is refused later, with all paths


def defaults(argv: Sequence[str]) -> Pretrain | None:
    """The options in the file of --config or --recipe, which the command line may override."""
    recipe, config = value_of("--recipe", argv), value_of("--config", argv)
    path = _file(recipe, config)
    if path is None:
        return None
    base = PretrainConfig.from_yaml(path)
    given = {f.name: getattr(base, f.name) for f in fields(PretrainConfig)}
    return Pretrain(**given, config=None if config is None else path, recipe=recipe)


def _check_reach(config: PretrainConfig, base: PretrainConfig) -> None:
    """Raises InputError for an option that has no effect because every phase of the file sets it."""
    names = ("lr", "schedule", "warmup", "token_budget", "accumulate", "samples.max_seqlen", "samples.max_predictions")
    for name in names:
        own = [getattr(phase, name.removeprefix("samples.")) is not None for phase in config.phases]
        if name == "warmup":  # that of a phase is one of its own schedule, and 0 if it does not say
            own = [phase.schedule is not None for phase in config.phases]
        if name == "accumulate":
            own = [phase.batch_sequences or phase.batch_tokens or phase.accumulate for phase in config.phases]
        given, usual = (attrgetter(name)(options) for options in (config, base))
        if config.phases and all(own) and given != usual:
            raise InputError(
                f"{option(name)} {given} would change nothing: every phase of the file "
                "sets its own; copy the file and change it there"
            )


def _check_moved(args: Pretrain) -> None:
    """Raises InputError for --resume auto with the config.yaml of a run directory that was renamed: the run would start
    from the beginning, under its old name."""
    if args.resume != "auto" or args.config is None:
        return
    run, said = args.config.parent, PretrainConfig.from_yaml(args.config).out
    out = Path(os.path.expanduser(said))
    if args.out == said and (run / "checkpoints").is_dir() and not (out / "checkpoints").is_dir():
        raise InputError(
            f"{args.config} says out: {out}, where there is no run to continue, but it is in one: "
            f"--out {run} continues it"
        )


def _plan(args: Pretrain, config: PretrainConfig) -> None:
    """Prints the plan of the run."""
    throughput = args.plan_throughput
    if throughput not in (None, "measure"):
        try:
            throughput = float(throughput)
        except ValueError:
            throughput = 0.0
        if not 0 < throughput < float("inf"):
            raise InputError(
                "--plan-throughput must be a number of tokens a second, or the word measure, "
                f"got {args.plan_throughput!r}"
            )
    if args.plan_ranks < 1:
        raise InputError(f"--plan-ranks must be at least 1, got {args.plan_ranks}")
    from ..train import plan_text
    from ..train.model_and_data import open_data
    from ..train.plan import make_plan

    data = open_data(config)[0] if config.data else None
    print(plan_text.text(make_plan(config, data=data, ranks=args.plan_ranks, throughput=throughput)))


def _check_scored(args: Pretrain, config: PretrainConfig) -> None:
    """Warns of a model that only the config.yaml of a run names: it is the one that the run started from.

    Raises:
        InputError: nobody has said which model is to be scored.
    """
    if config.model == PretrainConfig.model and not os.path.isdir(config.model):
        raise InputError("--evaluate scores the model in --model, a run or a model directory, got none")
    run = None if args.config is None else args.config.parent
    if (
        run is not None
        and (run / "metrics.jsonl").exists()
        and args.model == PretrainConfig.from_yaml(args.config).model
    ):
        logging.getLogger("fastbert").warning(
            "%s: scored is %s, which this run started from; --model %s scores the run", args.config, config.model, run
        )


def _evaluate(args: Pretrain, config: PretrainConfig) -> None:
    """Prints the figures of the model, without training."""
    if args.plan:
        raise InputError("expected --plan or --evaluate, got both")
    _check_scored(args, config)
    from ..tasks.trained import model_directory
    from ..train.metrics import to_line
    from ..train.score import score
    from ._progress import progress

    config = replace(config, model=str(model_directory(config.model)))
    with progress("scoring", None, "tokens") as advance:
        row = score(config, args.evaluate, advance)
    print(to_line({"model": config.model, "split": args.evaluate, **row}), end="")


def run(args: Pretrain) -> None:
    """Pre-trains, or prints a plan (--plan), a model's figures (--evaluate) or the list of recipes (--recipe list)."""
    if args.recipe == "list":
        width = max(map(len, recipes.names()))
        for name in recipes.names():
            print(f"{name:<{width}}  {recipes.summary(name)}")
        return
    if not args.plan:
        refuse_given(args, "plan_ranks", "plan_throughput", because="--plan, got it without, which would train")
    given = {f.name: getattr(args, f.name) for f in fields(PretrainConfig)}
    # A ~ in a file of options was not expanded by a shell.
    given |= {name: os.path.expanduser(given[name]) for name in _PATHS if given[name]}
    config = PretrainConfig(**given)
    if config.phases:
        _check_reach(config, PretrainConfig.from_yaml(_file(args.recipe, args.config)))
    if args.evaluate is not None:
        _evaluate(args, config)
        return
    if args.plan:
        _plan(args, config)
        return
    _check_moved(args)
    from ..train.pretrain import pretrain

    result = pretrain(config)
    if not result.paths:  # this rank writes nothing
        return
    if result.interrupted:
        print(f"stopped by {result.interrupted} after step {result.steps}; go on with --resume auto")
    print(f"{counted(result.steps, 'step')}, {counted(result.tokens, 'token')} in {duration(result.seconds)}")
    for path in result.paths:
        print(path)
