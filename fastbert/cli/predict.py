"""``fastbert predict``: a task's predictions in its official submission format."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg


@dataclass
class Predict:
    """Writes predictions in the task's official submission format.

    Example:
        fastbert predict sst2 --model RUN --data test.tsv --out SST-2.tsv
    """

    task: Positional[Annotated[str, arg(metavar="TASK")]]
    """Name of the task."""
    model: Annotated[Path, arg(metavar="RUN")]
    """A run of `fastbert finetune`, or a fine-tuned model directory."""
    data: Annotated[Path, arg(metavar="FILE")]
    """A file of the task, with or without labels."""
    out: Annotated[Path, arg(metavar="FILE")]
    """The file of predictions."""
    max_seqlen: int | None = None
    """Longest sequence in tokens; what the run was trained with by default."""
    token_budget: int = 8192
    """Tokens in a batch."""


def run(args: Predict) -> None:
    """Predicts every row of the file."""
    from ._tasks import predict_file

    task, rows, predictions, _ = predict_file(args.task, args.model, args.data, args.max_seqlen, args.token_budget)
    task.write_predictions(rows, predictions, args.out)
    print(args.out)
