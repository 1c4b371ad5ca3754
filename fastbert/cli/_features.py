"""``fastbert finetune --features``: trains a BiLSTM on one kind of features of a frozen model, or on each."""

from __future__ import annotations

import dataclasses
import glob
import tempfile
from collections.abc import Sequence

from ..files import held, remove_leftovers
from ..signals import removed_on_sigterm
from ..tasks.config import RECIPES, FinetuneConfig
from ..tasks.feature_files import Cached
from ..tasks.features import LAYERS
from ..tasks.results import FinetuneResult, show_cell, write_table
from ..weights.loading import warnings_held
from . import _finetune_training as training
from ._finetune_options import Finetune
from ._finetune_training import Inputs
from ._tables import print_table

WHOLE = "fine-tuning"


def train(args: Finetune, inputs: Inputs, configs: Sequence[FinetuneConfig]) -> None:
    """Trains on the given features; with "all", on each kind in a directory below OUT."""
    if args.features != "all":
        _train_on(args, inputs, configs)
        return
    task = inputs.task
    with warnings_held():  # missing weights are reported when the model is trained
        task.model(inputs.directory)  # an error must come now, and not in the last training hours later
    table: list[Sequence] = [("features", *task.metrics, "epoch", "seconds")]
    for name in (*LAYERS, WHOLE):
        print(f"== {name}")
        if name == WHOLE:
            result = _train_whole(args, inputs, configs[0])
        else:
            result = _train_on(dataclasses.replace(args, features=name, out=args.out / name), inputs, configs)
        if result.interrupted:
            return
        if result.late_signal and name != WHOLE:  # the signal stops all trainings
            print(f"stopped by {result.late_signal}; go on with --resume auto")
            return
        metrics = (result.best[metric] for metric in task.metrics)
        table.append((name, *metrics, result.best["epoch"], result.wall_seconds))
    path = write_table(table, args.out / "features.tsv")
    print("== all")
    print_table([[show_cell(cell) for cell in line] for line in table])
    print(path)


def _train_whole(args: Finetune, inputs: Inputs, config: FinetuneConfig) -> FinetuneResult:
    """Fine-tunes the whole model, with the task's usual number of epochs and learning rate."""
    inputs.task.features = None
    recipe = {name: getattr(FinetuneConfig, name) for name in ("epochs", "lr")}
    recipe |= {name: value for name, value in RECIPES.get(args.task, {}).items() if name in recipe}
    args = dataclasses.replace(args, features=None, out=args.out / WHOLE, **recipe)
    return training.train(args, inputs, args.trials(dataclasses.replace(config, **recipe)))


def _train_on(args: Finetune, inputs: Inputs, configs: Sequence[FinetuneConfig]) -> FinetuneResult:
    """Trains a BiLSTM on ``args.features``, which are kept in a temporary directory beside OUT."""
    task = inputs.task
    task.features, task.feature_units = args.features, args.feature_units
    out = args.out.resolve()  # the parent of "." is not itself
    out.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{out.name}.features-"
    remove_leftovers(out.parent, f"{glob.escape(prefix)}*")
    unfinished = tempfile.TemporaryDirectory(dir=out.parent, prefix=prefix)
    with removed_on_sigterm(), unfinished as folder, held(folder):

        def prepared(model) -> None:
            task.cache = Cached(model, folder)

        try:
            return training.train(args, inputs, configs, prepared)
        finally:
            task.cache = None
