"""``fastbert finetune``: a task from a pre-trained model."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from ..tasks.config import FinetuneConfig


@dataclass(kw_only=True)
class Finetune(FinetuneConfig):
    """Fine-tunes a pre-trained model on a task, evaluates it after each epoch and keeps the best.

    OUT holds config.yaml, metrics.jsonl, model/ (a Hugging Face directory with the tokenizer), and of the dev file
    the metrics, the predictions in the official format, and the rows that were got wrong.

    Example:
        fastbert finetune sst2 --model DIR --train train.tsv --dev dev.tsv --out RUN
        fastbert evaluate sst2 --model RUN --data dev.tsv
    """

    task: Positional[Annotated[str, arg(metavar="TASK")]]
    """Name of the task: cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte, wnli; or text-classification for a file with the
    columns text and label."""
    model: Annotated[Path, arg(metavar="DIR")]
    """A pre-trained model directory, or a run of `fastbert pretrain`."""
    train: Annotated[Path, arg(metavar="FILE")]
    """The training file."""
    dev: Annotated[Path, arg(metavar="FILE")]
    """The file to evaluate on."""
    out: Annotated[Path, arg(metavar="OUT")]
    """The run directory to make."""
    skip_bad_rows: bool = False
    """Leave out rows that cannot be used, and say how many and why; without it the first ends the command."""


def run(args: Finetune) -> None:
    """Reads everything, then trains: what does not fit is told before anything is written."""
    from ..tasks import registry
    from ..tasks.runs import check_new, model_directory
    from ._tasks import read_rows

    task = registry.get(args.task)
    check_new(args.out)
    train_rows = read_rows(task, args.train, args.skip_bad_rows, labelled=True)
    task.learn(train_rows)
    dev_rows = read_rows(task, args.dev, args.skip_bad_rows, labelled=True)
    directory = model_directory(args.model)
    config = FinetuneConfig(**{f.name: getattr(args, f.name) for f in fields(FinetuneConfig)})
    _train(args, task, directory, train_rows, dev_rows, config)


def _train(args: Finetune, task, directory: Path, train_rows, dev_rows, config: FinetuneConfig) -> None:
    import torch

    from .. import load_tokenizer
    from ..tasks.base import check_fit
    from ..tasks.finetune import finetune
    from ._progress import progress

    tokenizer = load_tokenizer(directory)
    torch.manual_seed(config.seed)  # the new head
    model = task.model(directory)
    check_fit(tokenizer, model.config, config.max_seqlen)
    _print_header(args, model, len(train_rows[: config.limit_train]), len(dev_rows[: config.limit_dev]))
    source = {"task": args.task, "model": str(args.model), "train": str(args.train), "dev": str(args.dev)}
    with progress(args.task, None, "steps") as advance:
        result = finetune(
            task,
            model,
            tokenizer,
            train_rows,
            dev_rows,
            config,
            out=args.out,
            source=source,
            on_step=lambda total: advance(1, total),
            on_epoch=_print_epoch,
        )
    best = ", ".join(f"{name} {result.best[name]:.4f}" for name in task.metrics)
    print(f"best epoch {result.best['epoch']}: {best}")
    for path in result.paths:
        print(path)


def _print_header(args: Finetune, model, train_rows: int, dev_rows: int) -> None:
    import torch

    from ..ops import _dispatch

    size = f"{args.token_budget} tokens" if args.token_budget else f"{args.batch_size} rows"
    served = ", ".join(f"{row['op']} {row['backend']}" for row in _dispatch.table())
    print(f"model      {args.model}: {model.num_parameters():,} parameters")
    print(f"data       {args.task}: {train_rows:,} training rows, {dev_rows:,} dev rows")
    print(
        f"training   {args.epochs} epochs of batches of {size}, at most {args.max_seqlen} tokens a row, "
        f"lr {args.lr:g}, {args.precision}, seed {args.seed}"
    )
    print(f"device     {model.device}, {torch.get_num_threads()} threads")
    print(f"backends   {served}", flush=True)


def _print_epoch(epoch: dict) -> None:
    print("  ".join(f"{k} {v:.4f}" if isinstance(v, float) else f"{k} {v}" for k, v in epoch.items()), flush=True)
