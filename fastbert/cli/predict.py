"""``fastbert predict``: a task's predictions in its official submission format."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from ..errors import InputError
from ..files import STANDARD_OUTPUT
from ._options import PredictOptions
from ._paths import InputPath, OutputOrStandard, OutputPath

if TYPE_CHECKING:
    import numpy as np

    from ..tasks.base import Example, Row, Task
    from ..tasks.classification import Classification
    from ..tasks.ner import NER
    from ..tasks.swag import SWAG
    from ..tasks.text_multilabel import TextMultilabel
    from ._tasks import Computed


@dataclass(kw_only=True)
class Predict(PredictOptions):
    """Writes predictions in the task's official submission format.

    Example:
        fastbert predict sst2 --model RUN --data test.tsv --out SST-2.tsv
        echo "a fine film" | fastbert predict sst2 --model RUN --data -
        fastbert predict ner --model RUN --sentences --data lines.txt
    """

    task: Positional[Annotated[str, arg(metavar="TASK")]]
    """Name of the task, as for `fastbert finetune`."""
    model: Annotated[InputPath, arg(metavar="RUN")]
    """A run of `fastbert finetune`, or a fine-tuned model directory."""
    data: Annotated[InputPath, arg(metavar="FILE")]
    """A file of the task, with or without labels; - for standard input, where a line may be a text alone, or the two
    texts of a pair with a tab between them (for ner, one word a line)."""
    sentences: bool = False
    """ner: each line of the file is a sentence, not a word with CoNLL's columns. Prints a JSON object for each with its
    entities: their types, places in the line and scores."""
    column: str | None = None
    """ner: the same for the sentences in this column of a table: .tsv, .csv, .jsonl or .parquet; in one without a
    header its number, from 1."""
    out: Annotated[OutputOrStandard, arg(metavar="FILE")] = "-"
    """The file of predictions, - for standard output; or a directory (it exists, or its name ends in a slash), where
    the file gets its official name (SST-2.tsv)."""
    probabilities: Annotated[OutputPath | None, arg(metavar="FILE")] = None
    """Tasks of classes, ner and swag: also write a table with the probability of every class, of ner of every tag for
    each word, of swag of every ending."""


def run(args: Predict) -> None:
    """Streams the rows if the task can; a file of predictions is written atomically."""
    from ..result_files import atomic_write, check_writable
    from ..signals import removed_on_sigterm
    from ._tasks import predicted

    task = _task(args)
    out = Path("-" if args.out in STANDARD_OUTPUT else args.out)
    if out.is_dir() or args.out.endswith("/"):
        out /= task.submission_name(args.data)
    check_writable(out, args.data)
    with contextlib.ExitStack() as stack:
        stack.enter_context(removed_on_sigterm())
        computed, table = None, args.probabilities
        if table is not None:
            _check_probabilities(task, table, out, args.data)
            computed = _writer(stack.enter_context(atomic_write(table)))
        found = predicted(task, args.model, args.data, args, computed)
        rows, predictions = stack.enter_context(found)
        written = task.write_predictions(rows, predictions, out)
    for path in written:
        print(path)
    if table is not None:  # beside predictions on standard output, which are nothing else
        print(table, file=sys.stdout if written else sys.stderr)


def _task(args: Predict) -> Task:
    """The task. Raises InputError for sentences of another than ner."""
    from ..tasks import registry

    task = registry.get(args.task)
    given = "--sentences" if args.sentences else "--column"
    if not args.sentences and args.column is None:
        return task
    if args.task != "ner":
        raise InputError(f"{given} belongs to ner, got the task {args.task}, whose columns are --text-columns")
    from ..tasks.ner_sentences import NERSentences

    return NERSentences(args.column)


def _check_probabilities(task: Task, table: Path, out: Path, data: Path) -> None:
    """Raises InputError if the task has no probabilities, or if a file would be written twice."""
    from ..result_files import check_writable

    if not hasattr(task, "probabilities"):
        raise InputError(f"--probabilities belongs to tasks of classes, ner and swag, got the task {task.name}")
    if table.resolve() == out.resolve():
        raise InputError(f"--probabilities: expected another file than the predictions', got {table} for both")
    check_writable(table, data)


def _writer(file: IO[str]) -> Computed:
    """What writes the probabilities of some rows into a table, first its header."""
    began = False

    def write(
        task: Classification | TextMultilabel | NER | SWAG,
        rows: Sequence[Row],
        examples: Sequence[Example],
        outputs: Sequence[np.ndarray],
    ) -> None:
        nonlocal began
        if not began:
            file.write("\t".join(task.probability_columns) + "\n")
            began = True
        for line in task.probabilities(rows, examples, outputs):
            file.write("\t".join(cell if isinstance(cell, str) else f"{cell:.6f}" for cell in line) + "\n")

    return write
