"""The output of `fastbert finetune`."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from .. import ops
from ..tasks.base import Row, Task
from ..tasks.config import FinetuneConfig
from ..tasks.files import read_lines, shorten
from ..tasks.results import FinetuneResult, show_cell
from ..tasks.search import trials_table
from ..train.precision import float32_products
from ..wording import counted
from ._finetune_options import Finetune
from ._tables import print_table

MAX_PRINTED_LINES = 30
SHOWN_TABLES = ("dev_classes.tsv", "dev_entities.tsv", "dev_questions.tsv")


def metrics(task: Task, record: dict, rows: Sequence[Row] = ()) -> str:
    """The task's metrics, for these rows, in one line."""
    return ", ".join(f"{name} {record[name]:.4f}" for name in task.metrics_of(rows))


def header(
    args: Finetune, model, configs: Sequence[FinetuneConfig], train_rows: Sequence[Row], dev_rows: Sequence[Row]
) -> None:
    """Prints the model, the data, the recipe, the device and the backends at the beginning of a training."""
    rows = len(train_rows[: args.limit_train]), len(dev_rows[: args.limit_dev])
    print(f"model      {args.model}: {counted(model.num_parameters(), 'parameter')}")
    print(f"data       {args.task}: {counted(rows[0], 'training row')}, {counted(rows[1], 'dev row')}")
    seeds = f"seeds {args.seed} to {args.seed + args.restarts - 1}" if args.restarts > 1 else f"seed {args.seed}"
    recipe, precision = _recipe(args, len(configs)), _precision(args, model.device)
    print(f"training   {recipe}, at most {args.max_seqlen} tokens a row, {precision}, {seeds}")
    print(f"device     {model.device}, {counted(torch.get_num_threads(), 'thread')}")
    print(f"backends   {ops.served()}", flush=True)


def one_answer(task: Task, args: Finetune, train_rows: Sequence[Row], dev_rows: Sequence[Row]) -> None:
    """Warns if all rows have the same answer, like the first rows of a sorted file: a model that always gives it is
    right, and the user would not know why nothing is learned."""
    parts = {"training": (train_rows, args.limit_train), "dev": (dev_rows, args.limit_dev)}
    for kind, (rows, limit) in parts.items():
        labels = [row.label for row in rows[:limit]]
        # Rows of tags differ in length, so rows without any tagged word are compared with the constant guess.
        if len(labels) < 2 or (len(set(labels)) > 1 and task.guess(rows[:limit]) != labels):
            continue
        shown = f": {shorten(str(labels[0]))}" if isinstance(labels[0], (str, float)) else ""
        first = f" (--limit-{kind.removesuffix('ing')} takes the first rows)" if len(labels) < len(rows) else ""
        print(f"warning: the {len(labels)} {kind} rows all have the same answer{shown}{first}", file=sys.stderr)


def _precision(args: Finetune, device: torch.device) -> str:
    if args.precision != "fp32":
        return args.precision
    products = float32_products(args.float32_matmul_precision, device)
    return "fp32" if products == "highest" else f"fp32 (products: {products})"


def _recipe(args: Finetune, trainings: int) -> str:
    parts = f" in {args.accumulate} micro-batches" if args.accumulate > 1 else ""
    if args.grid:
        sizes, rates, epochs = (
            ", ".join(f"{value:g}" for value in values)
            for values in (args.grid_batch_sizes, args.grid_lrs, args.grid_epochs)
        )
        return f"{trainings} trainings: batches of {sizes} rows{parts} x lr {rates} x {epochs} epochs"
    size = counted(args.token_budget, "token") if args.token_budget else counted(args.batch_size, "row")
    most = "at most " if args.patience is not None else ""
    recipe = f"{most}{counted(args.epochs, 'epoch')} of batches of {size}{parts}, lr {args.lr:g}"
    return f"{trainings} trainings of {recipe}" if trainings > 1 else recipe


def early(task: Task, record: dict, trainings: int = 1) -> None:
    """Prints the early check of one of so many trainings, and a second line if the model is no better than a constant
    answer."""
    first = task.metrics[0]
    guess = record.get(f"guess_{first}")
    known = "" if guess is None else f" (one answer for all: {guess:.4f})"
    minutes = round(record["seconds_left"] / 60)
    left = f"about {counted(minutes, 'minute')} left" if minutes else "under a minute left"
    left += f" of this training, one of {trainings}" if trainings > 1 else ""
    rows = counted(record["rows"], "dev row")
    where = f"early check at step {record['step']} of the epoch's {record['steps']}, on {rows}"
    print(f"{where}: {first} {record[first]:.4f}{known}, {left}", flush=True)
    if guess is not None and record[first] <= guess:
        advice = "if that is so at the end of the epoch, try another --seed or --lr, or --restarts"
        print(f"  nothing learned yet: {advice}", flush=True)


def evaluation(record: dict) -> None:
    """Prints the figures of an evaluation."""
    print("  ".join(f"{name} {show_cell(value)}" for name, value in record.items()), flush=True)


def ended_early(task: Task, outcome: FinetuneResult, config: FinetuneConfig) -> None:
    """Prints that a training had fewer epochs than it was to have, if so."""
    last = outcome.history[-1]["epoch"]
    if last < config.epochs:
        reason = outcome.diverged
        if reason is None:
            waited = counted(config.patience, "epoch" if config.eval_every is None else "evaluation")
            reason = f"no better {task.metrics[0]} in {waited} (--patience)"
        print(f"ended after epoch {show_cell(last)} of {config.epochs}: {reason}", flush=True)


def trial(task: Task, record: dict, count: int) -> None:
    """Prints the recipe and the outcome of one of several trainings."""
    epochs = counted(record["epochs"], "epoch")
    recipe = f"batch size {record['batch_size']}, lr {record['lr']:g}, {epochs}, seed {record['seed']}"
    outcome = record.get("failed") or metrics(task, record)
    if "diverged" in record:
        outcome += f" at epoch {show_cell(record['best_epoch'])}, then {record['diverged']}"
    print(f"training {record['trial']} of {count}: {recipe}: {outcome}", flush=True)


def result(task: Task, outcome: FinetuneResult, restarts: int) -> None:
    """Prints the table of the trainings, the best epoch, the table of classes, and a warning if nothing was learned."""
    first = task.metrics[0]
    if outcome.trials:
        print_table(trials_table(outcome.trials, task.metrics))
    if len(outcome.trials) == restarts > 1:
        values = [record[first] for record in outcome.trials if first in record]
        deviation = statistics.stdev(values) if len(values) > 1 else 0.0
        mean = f"mean {statistics.mean(values):.4f}, standard deviation {deviation:.4f}"
        print(f"{first} of {counted(len(values), 'seed')}: {mean}")
    print(f"best epoch {show_cell(outcome.best['epoch'])}: {metrics(task, outcome.best)}")
    for path in outcome.paths:
        if path.name in SHOWN_TABLES:
            _show_short(path)
    if first in outcome.guess and outcome.best[first] <= outcome.guess[first]:
        print(
            f"warning: nothing was learned: the best {first} is {outcome.best[first]:.4f}, and one answer for all rows "
            f"has {outcome.guess[first]:.4f}",
            file=sys.stderr,
        )


def _show_short(path: Path) -> None:
    """Prints a written table, unless it is long."""
    lines = [line for _, line in read_lines(path)]  # a label may contain a Unicode line separator
    if len(lines) <= MAX_PRINTED_LINES:
        print_table([line.split("\t") for line in lines])
