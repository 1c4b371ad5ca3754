"""One fine-tuning or one search of `fastbert finetune`, with what it prints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from .. import hardware, load_tokenizer
from ..tasks.base import Row, Task
from ..tasks.config import FinetuneConfig
from ..tasks.finetune import Callbacks, FinetuneResult, finetune
from ..tasks.results import results_name, write_results
from ..tasks.search import search
from ..tasks.training import EvaluationSet
from ..train.distributed import current
from . import _finetune_report as report
from ._finetune_options import Finetune
from ._progress import progress


@dataclass(frozen=True)
class Inputs:
    """What a command has read.

    Args:
        task: the task, which knows the labels of the training rows.
        directory: that of the model to start from.
        also: rows of further files to evaluate the best model on.
    """

    task: Task
    directory: Path
    train_rows: Sequence[Row]
    dev_rows: Sequence[Row]
    also: dict[Path, Sequence[Row]]


def train(
    args: Finetune,
    inputs: Inputs,
    configs: Sequence[FinetuneConfig],
    prepared: Callable[[torch.nn.Module], None] | None = None,
) -> FinetuneResult:
    """Fine-tunes with one recipe, or searches among several, and prints the progress.

    Args:
        args: the options.
        inputs: the task, the model's directory and the rows.
        configs: the recipe of each training.
        prepared: called with the model before the rows are encoded.
    """
    task, config = inputs.task, configs[0]
    tokenizer = load_tokenizer(inputs.directory)
    files = [str(path) for path in args.train]
    source = {"model": str(args.model), "train": files if len(files) > 1 else files[0]}
    source |= {"dev": str(args.dev)} if args.dev is not None else {"dev_share": args.dev_share}
    source |= {"also": [str(path) for path in args.also]} if args.also else {}
    for name in ("features", "feature_units", "skip_bad_rows", "fallback_encoding"):
        if getattr(args, name) != getattr(Finetune, name):
            source[name] = getattr(args, name)

    def new_model() -> torch.nn.Module:
        return task.model(inputs.directory).to(hardware.default_device())

    torch.manual_seed(config.seed)  # the new head
    model = new_model()
    if prepared is not None:
        prepared(model)
    rows = inputs.train_rows, inputs.dev_rows
    report.header(args, model, configs, *rows)
    with progress(args.task, None, "steps") as advance:

        def resumed(path: Path, step: int) -> None:
            print(f"resumed from {path} at step {step}", flush=True)
            advance(step)

        steps = lambda total: advance(1, total)  # noqa: E731
        callbacks = Callbacks(steps, lambda early: report.early(task, early, len(configs)), report.evaluation, resumed)
        options = {"out": args.out, "source": source, "callbacks": callbacks}
        if len(configs) == 1:
            result = finetune(task, model, tokenizer, *rows, config, **options)
        else:
            options["on_trial"] = lambda trial: report.trial(task, trial, len(configs))
            result, model = search(task, model, new_model, tokenizer, *rows, configs, **options)
    if result.interrupted:
        print(f"stopped by {result.interrupted}; go on with --resume auto")
        for path in result.paths:
            print(path)
        return result
    if len(configs) == 1:
        report.ended_early(task, result, config)
    paths = [*result.paths, *_evaluate_also(inputs, model, tokenizer, config.max_seqlen, args.out)]
    report.result(task, result, args.restarts)
    for path in paths:
        print(path)
    return result


def _evaluate_also(inputs: Inputs, model: torch.nn.Module, tokenizer, max_seqlen: int, out: Path) -> list[Path]:
    """Scores the best model on further files, only in the first of several processes; returns the files written."""
    if not current().first:
        return []
    task, paths = inputs.task, []
    for path, rows in inputs.also.items():
        score, predictions = EvaluationSet.of(task, rows, tokenizer, max_seqlen).score(task, model)
        print(f"{path}: {report.metrics(task, score, rows)}")
        paths += write_results(task, rows, predictions, score, out, f"also_{results_name(path)}")
    return paths
