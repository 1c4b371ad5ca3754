"""What `evaluate` and `predict` share: a file of a task through a fine-tuned model."""

from __future__ import annotations

from pathlib import Path

from ..tasks import registry
from ..tasks.base import Row, Task, check_fit, require_labels
from ..tasks.predict import run_model
from ..tasks.runs import load_trained, model_directory, run_config
from ._progress import progress

DEFAULT_MAX_SEQLEN = 128


def predict_file(
    name: str, run: Path, data: Path, max_seqlen: int | None, token_budget: int, *, labelled: bool = False
) -> tuple[Task, list[Row], list, float | None]:
    """Reads the rows, loads the model, predicts; returns the task, the rows, the predictions and the mean loss."""
    from .. import BertConfig, load_tokenizer
    from ..errors import InputError

    task = registry.get(name)
    rows = task.read(data)
    if labelled:
        require_labels(rows, data)
    directory = model_directory(run)
    recipe = run_config(run)
    trained = recipe.get("task", name)
    if trained != name:
        raise InputError(f"{run}: expected a model fine-tuned on {name}, got one of {trained}")
    task.restore(BertConfig.from_pretrained(directory))
    tokenizer = load_tokenizer(directory)
    model = load_trained(task.model, directory)
    max_seqlen = max_seqlen or recipe.get("max_seqlen", DEFAULT_MAX_SEQLEN)
    check_fit(tokenizer, model.config, max_seqlen)
    examples = task.encode(rows, tokenizer, max_seqlen)
    with progress(f"{name}: predicting", len(examples), "rows") as advance:
        outputs = run_model(task, model, examples, token_budget, advance)
    return task, rows, task.decode(rows, examples, outputs.values), outputs.loss
