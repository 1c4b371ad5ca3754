"""``fastbert finetune ner --features``: a BiLSTM on the features of a frozen model, and the paper's table of them."""

from __future__ import annotations

import dataclasses
import glob
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ..files import held, remove_leftovers
from ..signals import removed_on_sigterm
from ..tasks.config import RECIPES, FinetuneConfig
from ..tasks.feature_files import Cached
from ..tasks.features import LAYERS
from ..tasks.results import show_cell, write_table
from ..tasks.runs import warnings_held
from . import finetune
from ._tables import print_table

WHOLE = "fine-tuning"


def train(
    args: finetune.Finetune, task, directory: Path, rows: tuple, also: dict, configs: Sequence[FinetuneConfig]
) -> None:
    """Trains on the features asked for; of all, each in a directory of its own below OUT."""
    if args.features != "all":
        _train_one(args, task, directory, rows, also, configs)
        return
    with warnings_held():  # what the directory lacks is said when the model is trained
        task.model(directory)  # one that cannot be made must not end the last training, hours later
    table: list[Sequence] = [("features", *task.metrics, "epoch", "seconds")]
    for name in (*LAYERS, WHOLE):
        print(f"== {name}")
        one = dataclasses.replace(args, features=name if name != WHOLE else None, out=args.out / name)
        if name == WHOLE:
            task.features = None
            usual = {key: getattr(FinetuneConfig, key) for key in ("epochs", "lr")}
            recipe = usual | {key: value for key, value in RECIPES.get(args.task, {}).items() if key in usual}
            configs = args.trials(dataclasses.replace(configs[0], **recipe))
            result = finetune.train(dataclasses.replace(one, **recipe), task, directory, rows, also, configs)
        else:
            result = _train_one(one, task, directory, rows, also, configs)
        if result.interrupted:
            return
        metrics = (result.best[metric] for metric in task.metrics)
        table.append((name, *metrics, result.best["epoch"], result.wall_seconds))
    path = write_table(table, args.out / "features.tsv")
    print("== all")
    print_table([[show_cell(cell) for cell in line] for line in table])
    print(path)


def _train_one(args: finetune.Finetune, task, directory: Path, rows: tuple, also: dict, configs):
    """One training; the file of features lies beside OUT while it lasts."""
    task.features, task.feature_units = args.features, args.feature_units
    args.out.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{args.out.name}.features-"
    remove_leftovers(args.out.parent, f"{glob.escape(prefix)}*")
    unfinished = tempfile.TemporaryDirectory(dir=args.out.parent, prefix=prefix)
    with removed_on_sigterm(), unfinished as folder, held(folder):

        def prepared(model) -> None:
            task.cache = Cached(model, folder)

        try:
            return finetune.train(args, task, directory, rows, also, configs, prepared)
        finally:
            task.cache = None
