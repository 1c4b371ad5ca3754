"""What the commands for tasks share: reading their files, and a file through a fine-tuned model."""

from __future__ import annotations

import math
import sys
from dataclasses import fields
from pathlib import Path

from ..errors import InputError
from ..options import fitted_options
from ..tasks import registry
from ..tasks.bad_rows import BadRows, called
from ..tasks.base import Row, Task, check_fit, require_labels
from ..tasks.config import RECIPES, FinetuneConfig, TaskOptions
from ..tasks.predict import run_model
from ..tasks.runs import load_trained, model_directory, run_config
from ._options import PredictOptions
from ._progress import progress

SHOWN_REASONS = 5


def read_rows(
    task: Task, path: Path, skip_bad_rows: bool, *, labelled: bool = False, training: bool = False
) -> list[Row]:
    """The rows of a file; says on stderr how many were skipped, and why the first ones were.

    Args:
        labelled: rows must have labels.
        training: rows must be fit to train on.

    Raises:
        DataError: a row cannot be used and is not to be skipped, or labels are needed and there are none.
    """
    task.bad_rows = BadRows(skip_bad_rows, hint="--skip-bad-rows leaves such rows out")
    rows = task.read(path)
    if labelled:
        rows = require_labels(task, rows, path)
    if training:
        rows = task.for_training(rows, path)
        if not rows:
            raise task.bad_rows.none_left(path, "rows to train on")
    reasons = task.bad_rows.reasons
    if reasons:
        print(f"{called(path)}: {len(reasons)} bad rows skipped, {len(rows)} rows kept", file=sys.stderr)
        for reason in reasons[:SHOWN_REASONS]:
            print(f"  {reason}", file=sys.stderr)
        if len(reasons) > SHOWN_REASONS:
            print(f"  and {len(reasons) - SHOWN_REASONS} more", file=sys.stderr)
    return rows


def predict_file(
    name: str, run: Path, data: Path, options: PredictOptions, *, labelled: bool = False
) -> tuple[Task, list[Row], list, float | None]:
    """Reads the rows, loads the model, predicts; returns the task, the rows, the predictions and the mean loss."""
    from .. import load_tokenizer
    from ..models.encoders import read_config

    task = registry.get(name)
    if options.null_threshold is not None:
        if not hasattr(task, "null_threshold"):
            raise InputError(f"--null-threshold belongs to squad2, got the task {name}")
        if math.isnan(options.null_threshold):
            raise InputError("null_threshold must be a number, got nan")
    directory = model_directory(run)
    recipe = run_config(run)
    trained = recipe.get("task", name)
    if trained != name:
        raise InputError(f"{run}: expected a model fine-tuned on {name}, got one of {trained}")
    # Before the rows are read: a label that the model does not know is then refused with its line.
    task.restore(read_config(directory))
    task.predicting = not labelled
    rows = read_rows(task, data, options.skip_bad_rows, labelled=labelled)
    tokenizer = load_tokenizer(directory)
    model = load_trained(task.model, directory)
    task.adopt(model.config)
    names = [f.name for f in fields(TaskOptions)]
    kept = {name: recipe[name] for name in ("max_seqlen", *names) if name in recipe}
    kept = fitted_options(kept, FinetuneConfig, run / "config.yaml")
    task.configure(TaskOptions(**{name: kept[name] for name in names if name in kept}))
    if options.null_threshold is not None:
        task.null_threshold = options.null_threshold
    default = RECIPES.get(name, {}).get("max_seqlen", FinetuneConfig.max_seqlen)
    max_seqlen = kept.get("max_seqlen", default) if options.max_seqlen is None else options.max_seqlen
    check_fit(tokenizer, model.config, max_seqlen)
    examples = task.encode(rows, tokenizer, max_seqlen)
    with progress(f"{name}: predicting", len(examples), "rows") as advance:
        outputs = run_model(task, model, examples, options.token_budget, advance)
    return task, rows, task.decode(rows, examples, outputs.values), outputs.loss
