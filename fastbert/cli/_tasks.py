"""Shared by the commands for tasks: reads a task's files, and runs a fine-tuned model over a file."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import math
import os
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..data.chunks import characters_of, windows
from ..errors import InputError
from ..options import fitted_options
from ..tasks.bad_rows import BadRows, called
from ..tasks.base import Example, Row, Task, check_fit, require_labels
from ..tasks.config import RECIPES, FinetuneConfig, TaskOptions
from ..tasks.encoding import count_cut, say_if_cut
from ..tasks.files import shorten
from ..tasks.predict import Outputs, run_model
from ..tasks.trained import load_trained, model_directory, trained_with
from ..wording import counted
from ._options import PredictOptions, option
from ._progress import progress

Computed = Callable[[Task, Sequence[Row], Sequence[Example], Sequence[np.ndarray]], object]
"""A function of a task, some rows, their examples, and the model's outputs for these."""
SHOWN_REASONS = 5
GIVEN = {
    "text_columns": "tasks of texts",
    "label_column": "tasks of texts",
    "label_columns": "text-multilabel",
    "label_separator": "text-multilabel",
    "max_answer_length": "squad1 and squad2",
}
"""Options of a task that a command may give in place of those it was trained with, and what they belong to."""
_LABELS = {"label_column", "label_columns"}
"""Those of which one says where the labels are."""
_PART = re.compile(r"(.+-)([0-9]{5})(-of-([0-9]{5}).*)")
"""The names that data-set hubs give to the parts of a set: train-00000-of-00004.parquet."""


def _bad_rows(skip: bool, encoding: str | None) -> BadRows:
    return BadRows(skip, "--skip-bad-rows leaves such rows out", encoding)


def read_rows(
    task: Task,
    path: Path,
    skip_bad_rows: bool,
    encoding: str | None = None,
    *,
    labelled: bool = False,
) -> list[Row]:
    """Reads the rows of a file, and prints on stderr how many were skipped and why the first ones were.

    Args:
        task: the task.
        path: the file.
        skip_bad_rows: whether rows that cannot be used are skipped.
        encoding: that of lines that are not UTF-8; see `BadRows`.
        labelled: whether rows must have labels.

    Raises:
        DataError: a row cannot be used and is not to be skipped, or labels are needed and there are none.
    """
    rows = _rows_of(task, path, skip_bad_rows, encoding, labelled)
    _report_skipped(task, path, len(rows))
    return rows


def _rows_of(task: Task, path: Path, skip_bad_rows: bool, encoding: str | None, labelled: bool) -> list[Row]:
    task.bad_rows = _bad_rows(skip_bad_rows, encoding)
    rows = task.read(path)
    return require_labels(task, rows, path) if labelled else rows


def read_training(task: Task, paths: Sequence[Path], skip_bad_rows: bool, encoding: str | None) -> list[Row]:
    """The training rows of several files, in order. Sources that readers number within a file (articles, documents) are
    made distinct between files; ids stay as in the files.

    Raises:
        DataError: as `read_rows` does.
    """
    _say_if_parts_are_missing(paths)
    files = []
    for path in paths:
        of_file = _rows_of(task, path, skip_bad_rows, encoding, labelled=True)
        files.append((path, of_file, task.bad_rows))
    known = None
    if len(files) > 1:  # what is wrong with labels shows when those of all files are seen together
        known = [row for _, of_file, _ in files for row in of_file]
        task.check_labels(known, shorten(", ".join(map(str, paths)), 200))
    rows: list[Row] = []
    for number, (path, of_file, task.bad_rows) in enumerate(files):
        kept = task.for_training(of_file, path, known)
        if not kept:
            raise task.bad_rows.none_left(path, "rows to train on")
        _report_skipped(task, path, len(kept))
        for row in kept:
            counted_there = isinstance(row.source, int)
            rows.append(dataclasses.replace(row, source=(number, row.source)) if counted_there else row)
    return rows


def _say_if_parts_are_missing(paths: Sequence[Path]) -> None:
    """Warns if only some of the parts of a data set are given, which is easily overlooked."""
    given = defaultdict(set)
    for path in paths:
        found = _PART.fullmatch(path.name)
        if found is not None:
            given[path.with_name(f"{found[1]}*{found[3]}"), int(found[4])].add(found[2])
    for (pattern, count), parts in given.items():
        if len(parts) < count:
            logging.getLogger("fastbert").warning(
                "%s: got %d of the %d parts that its name speaks of; --train takes several files",
                pattern,
                len(parts),
                count,
            )


def _report_skipped(task: Task, path: Path, kept: int) -> None:
    reasons = task.bad_rows.reasons
    if task.bad_rows.decoded:
        places = counted(task.bad_rows.decoded, "place")
        print(f"{called(path)}: not UTF-8 in {places}, read as {task.bad_rows.encoding}", file=sys.stderr)
    if reasons:
        skipped = counted(len(reasons), "bad row")
        print(f"{called(path)}: {skipped} skipped, {counted(kept, 'row')} kept", file=sys.stderr)
        for reason in reasons[:SHOWN_REASONS]:
            print(f"  {reason}", file=sys.stderr)
        if len(reasons) > SHOWN_REASONS:
            print(f"  and {len(reasons) - SHOWN_REASONS} more", file=sys.stderr)


def configure(task: Task, options: PredictOptions, trained: dict[str, Any]) -> None:
    """Sets the options that a task was trained with, except for those of `GIVEN` that are in ``options``.

    Raises:
        InputError: one is given for a task that does not have it.
    """
    given = {name: getattr(options, name) for name in GIVEN if getattr(options, name) is not None}
    idle = next((name for name in given if not hasattr(task, name)), None)
    if idle is not None:
        raise InputError(f"{option(idle)} belongs to {GIVEN[idle]}, got the task {task.name}")
    if _LABELS & given.keys():  # in place of the one it was trained with
        trained = {name: value for name, value in trained.items() if name not in _LABELS}
    task.configure(TaskOptions(**{**trained, **given}))


def _check_texts(task: Task, options: PredictOptions, trained: dict[str, Any]) -> None:
    """Raises InputError if ``options`` name one column of texts and the model was trained on pairs, or the reverse."""
    if options.text_columns is None or not hasattr(task, "text_columns"):
        return
    columns = trained.get("text_columns") or type(task).text_columns
    if len(options.text_columns) != len(columns):
        expected, got = ", ".join(columns), ", ".join(options.text_columns)
        raise InputError(
            f"--text-columns must be {len(columns)} in number, since the model was trained on {expected}, got {got}"
        )


def _check_options(task: Task, options: PredictOptions) -> None:
    if options.null_threshold is not None:
        if not hasattr(task, "null_threshold"):
            raise InputError(f"--null-threshold belongs to squad2, got the task {task.name}")
        if math.isnan(options.null_threshold):
            raise InputError("null_threshold must be a number, got nan")
    if options.token_budget < 1:
        raise InputError(f"token_budget must be at least 1, got {options.token_budget}")


class Trained:
    """A task with a fine-tuned model, which is loaded by `load`, after the rows were read.

    Args:
        task: the task.
        run: the directory of a run or of a model.
        options: those of the command.
        labelled: whether the rows have labels.

    Raises:
        InputError: the model is for another task, or an option is not one of the task.
    """

    def __init__(self, task: Task, run: Path, options: PredictOptions, *, labelled: bool):
        from ..models.encoders import read_config

        self.task, self._token_budget, self._precision = task, options.token_budget, options.precision
        self._cut = self._rows = 0
        name = task.name
        _check_options(self.task, options)
        self._directory = model_directory(run)
        recipe, said_by = trained_with(run, name)
        self._first = f"fine-tune it first (fastbert finetune {name} --model {run} ...)"
        if "task" not in recipe and {"data", "model"} <= set(recipe):
            raise InputError(f"{run}: expected a fine-tuned model, got a run of `fastbert pretrain`; {self._first}")
        trained = recipe.get("task", name)
        if trained != name:
            raise InputError(f"{run}: expected a model fine-tuned on {name}, got one of {trained}")
        # Before the rows are read, so that a label that the model does not know is refused with its line.
        model = read_config(self._directory)
        self.task.restore(model)
        self.task.predicting = not labelled
        names = ("max_seqlen", *(f.name for f in dataclasses.fields(TaskOptions)))
        kept = {name: recipe[name] for name in names if name in recipe}
        kept = fitted_options(kept, FinetuneConfig, said_by)
        usual = RECIPES.get(name, {}).get("max_seqlen", FinetuneConfig.max_seqlen)
        longest = kept.pop("max_seqlen", min(usual, model.max_position_embeddings or usual))
        self._max_seqlen = longest if options.max_seqlen is None else options.max_seqlen
        if "task" in recipe:
            _check_texts(self.task, options, kept)
        configure(self.task, options, kept)
        if options.null_threshold is not None:
            self.task.null_threshold = options.null_threshold

    def load(self) -> None:
        """Loads the tokenizer and the model, and adapts the task to the model."""
        from .. import load_tokenizer

        self._tokenizer = load_tokenizer(self._directory)
        self._model = load_trained(self.task.model, self._directory, f"; {self._first}", self._precision)
        self.task.adopt(self._model.config)
        check_fit(self.task, self._tokenizer, self._model.config, self._max_seqlen)

    def say_if_cut(self) -> None:
        """Warns if many of the rows that were predicted are longer than what was read of them."""
        say_if_cut(self._cut, self._rows, self._max_seqlen, self._model.config.max_position_embeddings)

    def predict(
        self, rows: Sequence[Row], advance: Callable[..., None], whole: bool
    ) -> tuple[list, list[Example], Outputs]:
        """The predictions for rows, their examples, and the model's outputs for these.

        Args:
            rows: the rows to predict.
            advance: the function that `progress` yields.
            whole: whether these are all rows.
        """
        examples = self.task.encode(rows, self._tokenizer, self._max_seqlen)
        self._cut, self._rows = self._cut + count_cut(self.task, examples), self._rows + len(rows)
        if whole:
            advance(0, len(examples))
        elif len(examples) != len(rows):  # the bar counts rows, of which one may be several windows
            advance_rows = advance

            def advance(count: int) -> None:
                advance_rows(count * len(rows) / len(examples))

        outputs = run_model(self.task, self._model, examples, self._token_budget, advance)
        return self.task.decode(rows, examples, outputs.values), examples, outputs


def evaluate_file(task: Task, run: Path, data: Path, options: PredictOptions) -> tuple[list[Row], list, float | None]:
    """Reads the rows, loads the model and predicts. Returns the rows, the predictions and the mean loss."""
    trained = Trained(task, run, options, labelled=True)
    rows = read_rows(task, data, options.skip_bad_rows, options.fallback_encoding, labelled=True)
    trained.load()
    with progress(f"{task.name}: predicting", None, "rows") as advance:
        predictions, _, outputs = trained.predict(rows, advance, whole=True)
    trained.say_if_cut()
    return rows, predictions, outputs.loss


@contextlib.contextmanager
def predicted(
    task: Task, run: Path, data: Path, options: PredictOptions, computed: Computed | None = None
) -> Iterator[tuple[Iterable[Row], Iterable]]:
    """Yields the rows of a file and their predictions, in the order of the rows. For a task that streams,
    both are iterators, and a window of rows is kept only until it is consumed.

    A file is checked before anything is computed, so that a bad row is found at once; a pipe cannot be read twice.

    Args:
        task, run, data, options: as for `Trained`, and the file.
        computed: called with some rows, their examples and outputs before these rows are consumed.
    """
    trained, count = Trained(task, run, options, labelled=False), None
    if not task.streams:
        parts = iter([read_rows(task, data, options.skip_bad_rows, options.fallback_encoding)])
    else:
        if os.path.isfile(data) or os.path.isdir(data):
            count = sum(1 for _ in _fresh_rows(task, data, options))
            _report_skipped(task, data, count)
        rows = _fresh_rows(task, data, options)
        parts = windows(rows, lambda row: characters_of(row.texts))
    parts = itertools.chain([next(parts)], parts)  # errors in the first rows are raised before the model is loaded
    trained.load()
    with progress(f"{task.name}: predicting", count, "rows") as advance:

        def pairs() -> Iterator[tuple[Row, Any]]:
            kept = 0
            for window in parts:
                predictions, examples, outputs = trained.predict(window, advance, whole=not task.streams)
                if computed is not None:
                    computed(task, window, examples, outputs.values)
                kept += len(window)
                yield from zip(window, predictions, strict=True)
            if task.streams and count is None:
                _report_skipped(task, data, kept)
            trained.say_if_cut()

        # Both iterators are advanced together, so tee keeps at most one pair.
        of_rows, of_predictions = itertools.tee(pairs())
        rows, predictions = (row for row, _ in of_rows), (prediction for _, prediction in of_predictions)
        yield (rows, predictions) if task.streams else (list(rows), list(predictions))


def _fresh_rows(task: Task, path: Path, options: PredictOptions) -> Iterator[Row]:
    task.bad_rows = _bad_rows(options.skip_bad_rows, options.fallback_encoding)
    return task.rows(path)
