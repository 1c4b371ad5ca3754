"""What the commands for tasks share: reading their files, and a file through a fine-tuned model."""

from __future__ import annotations

import sys
from pathlib import Path

from ..tasks import registry
from ..tasks.bad_rows import BadRows
from ..tasks.base import Row, Task, check_fit, require_labels
from ..tasks.predict import run_model
from ..tasks.runs import load_trained, model_directory, run_config
from ._options import PredictOptions
from ._progress import progress

DEFAULT_MAX_SEQLEN = 128
SHOWN_REASONS = 5


def read_rows(task: Task, path: Path, skip_bad_rows: bool, *, labelled: bool = False) -> list[Row]:
    """The rows of a file; says on stderr how many were skipped, and why the first ones were.

    Raises:
        DataError: a row cannot be used and is not to be skipped, or labels are needed and there are none.
    """
    task.bad_rows = BadRows(skip_bad_rows, hint="--skip-bad-rows leaves such rows out")
    rows = task.read(path)
    if labelled:
        require_labels(rows, path)
    reasons = task.bad_rows.reasons
    if reasons:
        print(f"{path}: {len(reasons)} bad rows skipped, {len(rows)} rows kept", file=sys.stderr)
        for reason in reasons[:SHOWN_REASONS]:
            print(f"  {reason}", file=sys.stderr)
        if len(reasons) > SHOWN_REASONS:
            print(f"  and {len(reasons) - SHOWN_REASONS} more", file=sys.stderr)
    return rows


def predict_file(
    name: str, run: Path, data: Path, options: PredictOptions, *, labelled: bool = False
) -> tuple[Task, list[Row], list, float | None]:
    """Reads the rows, loads the model, predicts; returns the task, the rows, the predictions and the mean loss."""
    from .. import BertConfig, load_tokenizer
    from ..errors import InputError

    task = registry.get(name)
    rows = read_rows(task, data, options.skip_bad_rows, labelled=labelled)
    directory = model_directory(run)
    recipe = run_config(run)
    trained = recipe.get("task", name)
    if trained != name:
        raise InputError(f"{run}: expected a model fine-tuned on {name}, got one of {trained}")
    task.restore(BertConfig.from_pretrained(directory))
    tokenizer = load_tokenizer(directory)
    model = load_trained(task.model, directory)
    max_seqlen = options.max_seqlen or recipe.get("max_seqlen", DEFAULT_MAX_SEQLEN)
    check_fit(tokenizer, model.config, max_seqlen)
    examples = task.encode(rows, tokenizer, max_seqlen)
    with progress(f"{name}: predicting", len(examples), "rows") as advance:
        outputs = run_model(task, model, examples, options.token_budget, advance)
    return task, rows, task.decode(rows, examples, outputs.values), outputs.loss
