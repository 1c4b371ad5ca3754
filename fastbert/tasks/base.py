"""What a task is: the one interface between a data set and the machinery of fine-tuning and prediction.

A task owns its file format, its encoding, its head, its labels, its decoding, its metric and its submission format.
`finetune`, `predict` and the command line call the methods of `Task` and know nothing else of it.
Shape letters: B examples of a batch, T tokens of a packed batch, C classes.
"""

from __future__ import annotations

import abc
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..data.special_tokens import names_of
from ..errors import DataError, InputError
from .bad_rows import STRICT, BadRows, called
from .config import TaskOptions
from .files import shorten

if TYPE_CHECKING:
    import numpy as np
    import torch
    from tokenizers import Tokenizer

    from ..model_config import ModelConfig
    from ..packing import PackedBatch
    from .transforms import Transform


@dataclass(frozen=True)
class Row:
    """One row of a task's file, as a person would read it.

    Args:
        id: what the submission format calls it (an index, a question id).
        texts: one text, a pair, or whatever the task's `encode` expects.
        label: what the metric compares with; None where the file has none (a test set).
    """

    id: str
    texts: tuple[str, ...]
    label: Any = None


@dataclass(frozen=True)
class Example:
    """One sequence for the model. A row gives one example, or several (windows over a long document).

    Args:
        row: index into the rows that were encoded.
        input_ids, token_type_ids: of one length.
        label: what the loss needs: a class id, a number, one id a token; None without a label.
        truncated: tokens were cut off to fit.
        meta: what the task's `decode` needs (offsets of tokens in the text).
    """

    row: int
    input_ids: Sequence[int] | np.ndarray
    token_type_ids: Sequence[int] | np.ndarray
    label: Any = None
    truncated: bool = False
    meta: Any = None

    @property
    def num_tokens(self) -> int:
        return len(self.input_ids)


class Task(abc.ABC):
    """A data set's format, head, metric and submission format.

    Attributes:
        name: what the command line calls it.
        metrics: names of the metrics, the first of which picks the best epoch; larger is better.
        submission: the official name of a file of predictions.
        bad_rows: where `read` hands every row that it cannot use.
        predicting: rows are read to be predicted. A label that is none of the task's is no label then, where else its
            row cannot be used: nobody needs it; and every row needs an id of its own, where files have such.
        label_place: where labels stand in a file, in words.
        label_columns: of the file that was read last, if it has named columns.
    """

    name: str
    metrics: tuple[str, ...]
    submission: str = "predictions.tsv"
    bad_rows: BadRows = STRICT
    predicting: bool = False
    label_place: str = "labels in every row"
    label_columns: LabelColumns | None = None
    bilstm: int | None = None
    auxiliary_lm: float = 0.0
    transform: Transform | None = None

    def configure(self, options: TaskOptions) -> None:
        """Takes the options that the task knows: those whose names it has as attributes. Some decide what `model`
        makes, so that it comes before."""
        for name in TaskOptions.__dataclass_fields__:
            if hasattr(self, name):
                setattr(self, name, getattr(options, name))

    @abc.abstractmethod
    def read(self, path: str | os.PathLike) -> list[Row]:
        """Reads a file of the task, with or without labels; unusable rows go to ``bad_rows.refuse`` with file, line
        and reason, which raises DataError unless they are to be skipped."""

    def check_id(self, name: str, seen: set[str]) -> None:
        """Raises ValueError for an id that breaks the lines of a submission, and for a row that is to be predicted and
        has none, or that of one before it: a submission is read by them.

        Args:
            seen: the ids of the rows before, to which this one is added.
        """
        if any(mark in name for mark in "\t\n\r"):
            raise ValueError(f"expected an id that a line of a submission has a place for, got {name!r:.60}")
        if not self.predicting:
            return
        if not name:
            raise ValueError("expected an id, by which predictions are told apart, got an empty one")
        if name in seen:
            raise ValueError(f"expected every id once, by which predictions are told apart, got {name} again")
        seen.add(name)

    def for_training(self, rows: Sequence[Row], path: str | os.PathLike) -> list[Row]:
        """The rows of a training file that can be trained on; others go to ``bad_rows.refuse``. All, by default."""
        return list(rows)

    def learn(self, rows: Sequence[Row]) -> None:  # noqa: B027
        """Takes from the training rows what the head depends on (the names of the labels); nothing by default."""

    def restore(self, config: ModelConfig) -> None:  # noqa: B027
        """Takes the same from the configuration of a fine-tuned model; nothing by default."""

    def settle(self, rows: Sequence[Row], predictions: Sequence, config: ModelConfig) -> list:
        """Takes from the best epoch's dev predictions what later ones depend on (a threshold), and keeps it in the
        model's configuration for `restore`; returns the predictions with it. Nothing by default."""
        return list(predictions)

    @abc.abstractmethod
    def encode(self, rows: Sequence[Row], tokenizer: Tokenizer, max_seqlen: int) -> list[Example]:
        """Examples of at most max_seqlen tokens, in the order of the rows."""

    def adopt(self, config: ModelConfig) -> None:
        """Takes from the model how it reads rows: a GPT's input transforms, or BERT's sequences. Before `encode`.

        Raises:
            InputError: an option that this kind of model has no use for.
        """
        from .transforms import Transform

        # Features are looked at token by token, in the sequences that a BERT has.
        self.transform = None if getattr(config, "feature_layers", None) else Transform.of(config)
        if self.auxiliary_lm and self.transform is None:
            raise InputError(f"auxiliary_lm is the loss of a language model's next words, got a {config.model_type}")

    def on_top(self) -> dict[str, Any]:
        """What the options ask for between encoder and head, as keyword arguments of `from_pretrained`."""
        return {} if self.bilstm is None else {"bilstm_units": self.bilstm}

    @abc.abstractmethod
    def model(self, directory: str | os.PathLike) -> torch.nn.Module:
        """The model with the task's head: from a pre-trained directory (new head) or from a fine-tuned one."""

    def collate(self, examples: Sequence[Example]) -> tuple[PackedBatch, dict[str, Any]]:
        """A packed batch, and keyword arguments of the model: the labels (none for unlabelled examples), and what else
        it needs."""
        import torch

        from ..packing import PackedBatch

        batch = PackedBatch.from_sequences([e.input_ids for e in examples], [e.token_type_ids for e in examples])
        if any(e.label is None for e in examples):
            return batch, {}
        return batch, {"labels": torch.tensor([e.label for e in examples])}

    def outputs(self, out: Any, batch: PackedBatch) -> list[np.ndarray]:
        """What the model says of each example of a batch: by default its row of the (B, C) logits, in fp32."""
        return list(out.logits.float().cpu().numpy())

    @abc.abstractmethod
    def decode(self, rows: Sequence[Row], examples: Sequence[Example], outputs: Sequence[np.ndarray]) -> list:
        """One prediction a row, from the outputs of its examples."""

    def metrics_of(self, rows: Sequence[Row]) -> tuple[str, ...]:
        """The names of the metrics of these rows: `metrics`, unless the rows have others besides."""
        return self.metrics

    @abc.abstractmethod
    def metric(self, rows: Sequence[Row], predictions: Sequence) -> dict[str, float]:
        """The official metrics, by the names in `metrics_of`."""

    @abc.abstractmethod
    def write_predictions(self, rows: Sequence[Row], predictions: Sequence, path: str | os.PathLike) -> None:
        """Writes the official submission format."""

    def prediction_files(self, path: str | os.PathLike, predictions: Sequence) -> list[Path]:
        """The files that `write_predictions` writes for a path and predictions; that alone by default."""
        return [Path(path)]

    @abc.abstractmethod
    def read_predictions(self, rows: Sequence[Row], path: str | os.PathLike) -> list:
        """Reads the official submission format: one prediction a row, in the order of the rows."""

    def submission_name(self, data: str | os.PathLike) -> str:
        """The official name of the predictions for a file of data; `submission` unless the file decides."""
        return self.submission

    def guess(self, rows: Sequence[Row]) -> list | None:
        """Predictions that know nothing of the texts (the most frequent label for every row); None where the task has
        no such thing. A model that is no better has learned nothing."""
        return None

    def tables(self, rows: Sequence[Row], predictions: Sequence) -> dict[str, list[Sequence]]:
        """Tables for a person, by name: each a header and its lines, of strings, whole numbers and floats."""
        return {}

    def errors(self, rows: Sequence[Row], predictions: Sequence) -> Iterable[dict]:
        """The rows that were got wrong, for a person to read."""
        for row, prediction in zip(rows, predictions, strict=True):
            if row.label != prediction:
                yield {"id": row.id, "texts": list(row.texts), "label": row.label, "prediction": prediction}


@dataclass(frozen=True)
class LabelColumns:
    """Where a task has looked for labels: the file and its line, the names that their column may have, and those of the
    columns that are there."""

    where: str
    names: Sequence[str]
    found: Sequence[str]


def require_labels(task: Task, rows: Sequence[Row], path: str | os.PathLike) -> list[Row]:
    """The rows with labels; others are bad rows (SNLI has some on whose label its annotators did not agree).

    Args:
        task: which has read the rows from the path.

    Raises:
        DataError: no row has one; or by the task's bad_rows.
    """
    kept = [row for row in rows if row.label is not None]
    if not kept:
        raise DataError(_without_labels(task, path))
    for row in rows:
        if row.label is None:
            task.bad_rows.refuse(
                f"{called(path)}, the row of index {row.id}: expected a label as in other rows, got none"
            )
    return kept


def _without_labels(task: Task, path: str | os.PathLike) -> str:
    """What is said of a file whose rows all have no label."""
    columns = task.label_columns
    if columns is None:
        return f"{called(path)}: expected {task.label_place}, got a file without them"
    column = next((name for name in columns.names if name in columns.found), None)
    if column is None:
        expected, found = " or ".join(columns.names), shorten(", ".join(columns.found), 200)
        return f"{columns.where}: expected a column {expected} with the label of every row, got the columns {found}"
    return f"{called(path)}: expected labels in the column {column}, got none in all rows"


def check_fit(tokenizer: Tokenizer, config: ModelConfig, max_seqlen: int) -> None:
    """Raises InputError where a tokenizer or a length does not fit a model."""
    most = config.max_position_embeddings
    if max_seqlen < 3 or (most is not None and max_seqlen > most):
        bound = "at least 3" if most is None else f"between 3 and the model's max_position_embeddings, {most}"
        raise InputError(f"max_seqlen must be {bound}, got {max_seqlen}")
    first = names_of(tokenizer).cls_token
    if config.model_type == "bert" and tokenizer.token_to_id(first) is None:
        raise InputError(f"a BERT reads {first} first, got a tokenizer that has no such token")
    largest = max(tokenizer.get_vocab(with_added_tokens=True).values())
    if largest >= config.vocab_size:
        raise InputError(
            f"the tokenizer's ids go up to {largest}, but the model's vocab_size is {config.vocab_size}: "
            "they do not belong together"
        )
