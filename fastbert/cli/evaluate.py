"""``fastbert evaluate``: a task's official metric for a model or for a file of predictions."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import dataclass
from typing import Annotated

from tyro.conf import Positional, arg

from ..errors import InputError
from ._options import PredictOptions, check_one_of, refuse_given
from ._paths import InputPath, OutputPath


@dataclass(kw_only=True)
class Evaluate(PredictOptions):
    """Prints the task's official metric as JSON, for a fine-tuned model or for a file of predictions.

    `fastbert pretrain --evaluate` prints the held-out losses of a pre-trained model.

    Example:
        fastbert evaluate sst2 --model RUN --data dev.tsv
        fastbert evaluate sst2 --data dev.tsv --predictions SST-2.tsv
        fastbert evaluate squad2 --data dev.json --predictions p.json --na-prob null_odds.json --na-prob-threshold inf
    """

    task: Positional[Annotated[str, arg(metavar="TASK")]]
    """Name of the task, as for `fastbert finetune`."""
    data: Annotated[InputPath, arg(metavar="FILE")]
    """A file of the task with labels."""
    model: Annotated[InputPath | None, arg(metavar="RUN")] = None
    """A run of `fastbert finetune`, or a fine-tuned model directory."""
    predictions: Annotated[InputPath | None, arg(metavar="FILE")] = None
    """Predictions in the official submission format, in place of a model."""
    na_prob: Annotated[InputPath | None, arg(metavar="FILE")] = None
    """squad2, with --predictions: the probability of no answer for each question, as JSON, or the score differences
    that `predict` writes."""
    na_prob_threshold: float = 1.0
    """squad2, with --na-prob: the prediction is "no answer" if its probability is above this; inf leaves predictions as
    they are, as score differences, which may be above 1, need."""
    report: Annotated[OutputPath | None, arg(metavar="DIR")] = None
    """A directory for the same files as by `finetune`: metrics, predictions, tables and the wrongly predicted rows."""


def run(args: Evaluate) -> None:
    """Scores the model or the predictions."""
    from ..result_files import check_writable
    from ..tasks import registry
    from ..tasks.results import predictions_path, results_name, write_results
    from ._tasks import configure, evaluate_file, read_rows

    _check_options(args)
    task = registry.get(args.task)
    configure(task, args, {})
    name = results_name(args.data)
    if args.report is not None:
        check_writable(args.report / f"{name}_metrics.json")
        read = [file for file in (args.data, args.predictions) if file is not None]
        check_writable(predictions_path(task, args.report, name), *read)
    loss = None
    if args.predictions is not None:
        rows = read_rows(task, args.data, args.skip_bad_rows, args.fallback_encoding, labelled=True)
        predictions = _read_predictions(task, rows, args)
    else:
        task = registry.get(args.task)  # to be configured by what the model was trained with first
        rows, predictions, loss = evaluate_file(task, args.model, args.data, args)
    metrics = task.metric(rows, predictions) | ({} if loss is None else {"loss": loss})
    if args.report is not None:
        for path in write_results(task, rows, predictions, metrics, args.report, name):
            print(path, file=sys.stderr)
    print(json.dumps({"task": args.task, "rows": len(rows), **metrics}))


def _check_options(args: Evaluate) -> None:
    """Raises InputError for options that do not go together."""
    check_one_of(args, "model", "predictions")
    if args.na_prob is not None and (args.task != "squad2" or args.predictions is None):
        raise InputError("--na-prob belongs to --predictions of squad2, got another use of it")
    if args.na_prob is None:
        refuse_given(args, "na_prob_threshold", because="--na-prob, got it without")
    if math.isnan(args.na_prob_threshold):  # every comparison with it would be false
        raise InputError("--na-prob-threshold must be a number, got nan")
    if args.predictions is not None:
        names = ("max_seqlen", "token_budget", "precision", "null_threshold", "max_answer_length")
        refuse_given(args, *names, because="--model, got it with --predictions, which are final")


def _read_predictions(task, rows, args: Evaluate) -> list:
    predictions = task.read_predictions(rows, args.predictions)
    if args.na_prob is None:
        return predictions
    task.na_prob_threshold = args.na_prob_threshold
    return task.read_na_probs(rows, predictions, args.na_prob)
