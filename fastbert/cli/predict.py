"""``fastbert predict``: a task's predictions in its official submission format."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from ..files import STANDARD_OUTPUT
from ._options import PredictOptions
from ._paths import InputPath, OutputOrStandard


@dataclass(kw_only=True)
class Predict(PredictOptions):
    """Writes predictions in the task's official submission format.

    Example:
        fastbert predict sst2 --model RUN --data test.tsv --out SST-2.tsv
        echo "a fine film" | fastbert predict sst2 --model RUN --data -
    """

    task: Positional[Annotated[str, arg(metavar="TASK")]]
    """Name of the task, as for `fastbert finetune`."""
    model: Annotated[InputPath, arg(metavar="RUN")]
    """A run of `fastbert finetune`, or a fine-tuned model directory."""
    data: Annotated[InputPath, arg(metavar="FILE")]
    """A file of the task, with or without labels; - for standard input, where a line may be a text alone, or the two
    texts of a pair with a tab between them (for ner, one word a line)."""
    out: Annotated[OutputOrStandard, arg(metavar="FILE")] = "-"
    """The file of predictions, - for standard output; or a directory (it exists, or its name ends in a slash), where
    the file gets its official name (SST-2.tsv)."""


def run(args: Predict) -> None:
    """Streams the rows if the task can; a file of predictions is written atomically."""
    from ..result_files import check_writable
    from ..signals import removed_on_sigterm
    from ..tasks import registry
    from ._tasks import predicted

    name = registry.get(args.task).submission_name(args.data)
    out = Path("-" if args.out in STANDARD_OUTPUT else args.out)
    if out.is_dir() or args.out.endswith("/"):
        out /= name
    check_writable(out, args.data)
    with removed_on_sigterm(), predicted(args.task, args.model, args.data, args) as (task, rows, predictions):
        written = task.write_predictions(rows, predictions, out)
    for path in written:
        print(path)
