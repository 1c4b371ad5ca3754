"""What a task is: the one interface between a data set and the machinery of fine-tuning and prediction.

A task owns its file format, its encoding, its head, its labels, its decoding, its metric and its submission format.
`finetune`, `predict` and the command line call the methods of `Task` and know nothing else of it.
Shape letters: B examples of a batch, T tokens of a packed batch, C classes.
"""

from __future__ import annotations

import abc
import itertools
import os
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..data.special_tokens import has_types, names_of
from ..errors import DataError, InputError
from .bad_rows import STRICT, BadRows, called
from .config import TaskOptions
from .files import shorten
from .input_transforms import Transform

if TYPE_CHECKING:
    import torch
    from tokenizers import Tokenizer

    from ..model_config import ModelConfig
    from ..models.pretrained import PreTrainedModel
    from ..packing import PackedBatch

IGNORE_INDEX = -100
"""The label of tokens that do not count in a loss, as in torch's cross-entropy."""
OF_FEATURES = ("feature_layers", "feature_units", "feature_pairs")
"""What the configuration of a head on frozen features has (`FeatureTask`), and that of another model must not have."""
SETTLED = ("label_mean", "label_deviation", "null_threshold")
"""What tasks keep in a model's configuration in `Task.settle`."""


@dataclass(frozen=True)
class Row:
    """One row of a task's file, before encoding.

    Args:
        id: its name in the submission format (an index, a question id).
        texts: one text, a pair, or whatever the task's `encode` expects.
        label: what the metric compares predictions with; None if the file has no labels (a test set).
        source: what this and other rows were taken from, such as a video or the number of an article in the file; None
            if the file does not tell.
    """

    id: str
    texts: tuple[str, ...]
    label: Any = None
    source: Hashable = field(default=None, repr=False, compare=False, kw_only=True)


@dataclass(frozen=True)
class Example:
    """One sequence for the model. A row becomes one example, or several (windows over a long document).

    Args:
        row: index of the row among those that were encoded.
        input_ids, token_type_ids: (tokens,) each.
        label: what the loss needs: a class id, a number, or one id per token; None for a row without a label.
        truncated: whether it does not have all tokens of its row: they were cut off, or are in other windows.
        meta: what the task's `decode` needs, such as the tokens' offsets in the text.
        features: where a frozen model's features of this example are stored, a `FeatureFile` and the number in it; or
            None.
    """

    row: int
    input_ids: Sequence[int] | np.ndarray
    token_type_ids: Sequence[int] | np.ndarray
    label: Any = None
    truncated: bool = False
    meta: Any = None
    features: tuple[Any, int] | None = None

    @property
    def num_tokens(self) -> int:
        """The number of tokens."""
        return len(self.input_ids)


class Task(abc.ABC):
    """A data set's format, head, metric and submission format.

    Attributes:
        name: its name on the command line.
        metrics: names of the metrics; the first chooses the best epoch, and larger is better.
        submission: the official name of a file of predictions.
        bad_rows: what to do with rows that `read` cannot use.
        predicting: whether rows are read to be predicted. If so, a label that the task does not have counts as no label
            instead of making a bad row, and the ids of a file that has them must differ.
        pairs: whether the model reads two texts at a time.
        in_windows: whether rows that are too long become several examples, so that nothing is cut off.
        streams: whether the prediction for a row does not depend on other rows. Then rows are taken from `rows`, and
            predicted a few at a time.
        label_place: where a file has its labels, in words for messages.
        looked_for: where labels were looked for in the last file that was read, if it has named columns.
        bilstm, auxiliary_lm: those of `TaskOptions`.
        transform: how a GPT reads rows; None for other models.
    """

    name: str
    metrics: tuple[str, ...]
    submission: str = "predictions.tsv"
    bad_rows: BadRows = STRICT
    predicting: bool = False
    pairs: bool = False
    in_windows: bool = False
    streams: bool = False
    label_place: str = "labels in every row"
    looked_for: LabelColumns | None = None
    bilstm: int | None = None
    auxiliary_lm: float = 0.0
    transform: Transform | None = None

    def configure(self, options: TaskOptions) -> None:
        """Sets those options that the task has as attributes; an option that is None changes nothing. To be called
        before `read` and `model`, which depend on some of them.

        Raises:
            InputError: an option does not fit the task.
        """
        for name in TaskOptions.__dataclass_fields__:
            if hasattr(self, name) and getattr(options, name) is not None:
                setattr(self, name, getattr(options, name))

    @abc.abstractmethod
    def read(self, path: str | os.PathLike) -> list[Row]:
        """Reads a file of the task, with or without labels.

        An unusable row is passed to ``bad_rows.refuse`` with file, line and reason, which raises DataError unless bad
        rows are to be skipped.
        """

    def rows(self, path: str | os.PathLike) -> Iterator[Row]:
        """Yields the rows of `read` one by one; a task that `streams` does so in constant memory if the file's format
        allows it. Checks that need all labels at once are left out."""
        return iter(self.read(path))

    def check_id(self, name: str, seen: set[str], numbered: bool = False) -> None:
        """Raises ValueError for an id that cannot be written in a line of a submission. When predicting, also for an
        empty or repeated id, since predictions are matched by id.

        Args:
            name: the id.
            seen: the ids of earlier rows, to which this one is added; numbered rows add "".
            numbered: the file has no id for this row, so its number is used. Then no row of it may have an id.
        """
        if any(mark in name for mark in "\t\n\r"):
            raise ValueError(f"expected an id without tabs and line ends, got {name!r:.60}")
        if not self.predicting:
            return
        if numbered:
            if seen and "" not in seen:
                raise ValueError("expected an id as in the rows before, since predictions are matched by id, got none")
            seen.add("")
            return
        if "" in seen:
            raise ValueError(f"expected no id, as in the rows before, which are numbered, got {name!r:.60}")
        if not name:
            raise ValueError("expected an id, since predictions are matched by id, got an empty one")
        if name in seen:
            raise ValueError(f"expected every id once, since predictions are matched by id, got {name} again")
        seen.add(name)

    def for_training(
        self, rows: Sequence[Row], path: str | os.PathLike, known: Sequence[Row] | None = None
    ) -> list[Row]:
        """The rows that can be trained on, by default all; the others are passed to ``bad_rows.refuse``.

        Args:
            rows: those of one file.
            path: the file.
            known: the rows of all training files if there are several, whose labels belong together; `check_labels` is
                then called with them once.
        """
        return list(rows)

    def check_labels(self, rows: Sequence[Row], path: str | os.PathLike) -> None:  # noqa: B027
        """Warns of labels that look wrong; by default of none. Arguments are those of `for_training`."""

    def sources(self, row: Row) -> tuple[Hashable | None, ...]:
        """What a row was taken from, from the largest unit to the smallest, each None if unknown; by default its
        ``source`` and its first text. Rows of one source are not split between training and evaluation, since the model
        could recognise in one what it has seen in the other."""
        return row.source, row.texts[0]

    def unlabelled(self, rows: Sequence[Row]) -> str:
        """What a file without labels has in their place, in words for a message."""
        return "a file without them"

    def learn(self, rows: Sequence[Row], used: Sequence[Row] | None = None) -> None:  # noqa: B027
        """Finds out from the training rows what the head depends on; by default nothing.

        Args:
            rows: all rows of the training file, which have the classes.
            used: those of them that are trained on, of which statistics are; None for all of them.
        """

    def restore(self, config: ModelConfig) -> None:  # noqa: B027
        """Restores from a fine-tuned model's configuration what `learn` and `settle` found; by default nothing."""

    def settle(self, rows: Sequence[Row], predictions: Sequence, config: ModelConfig) -> list:
        """Chooses what later predictions depend on, such as a threshold, from the best epoch's predictions for the dev
        rows, and stores it in the model's configuration for `restore`; by default nothing. What the task of an earlier
        run has stored there is removed.

        Returns:
            the predictions with that choice.
        """
        for name in SETTLED:
            vars(config).pop(name, None)
        return list(predictions)

    @abc.abstractmethod
    def encode(self, rows: Sequence[Row], tokenizer: Tokenizer, max_seqlen: int) -> list[Example]:
        """Encodes rows as examples of at most max_seqlen tokens, in the order of the rows."""

    def adopt(self, config: ModelConfig) -> None:
        """Adapts the task to the kind of model: rows become BERT's sequences, or those of a GPT's input transforms. To
        be called before `encode`.

        Raises:
            InputError: an option does not apply to this kind of model.
        """
        # A head on frozen features reads BERT's sequences, whatever the model below it is.
        self.transform = None if getattr(config, "feature_layers", None) else Transform.of(config)
        if self.auxiliary_lm and self.transform is None:
            raise InputError(f"auxiliary_lm is the loss of a language model's next words, got a {config.model_type}")

    def on_top(self) -> dict[str, Any]:
        """Keyword arguments of `from_pretrained` for what the options add between encoder and head."""
        return {} if self.bilstm is None else {"bilstm_units": self.bilstm}

    def load(self, head: type[PreTrainedModel], directory: str | os.PathLike, **options: Any) -> PreTrainedModel:
        """The model of a directory with this head; ``options`` are those of `from_pretrained`."""
        model = head.from_pretrained(directory, **options, **self.on_top())
        for name in OF_FEATURES:
            vars(model.config).pop(name, None)
        return model

    @abc.abstractmethod
    def model(self, directory: str | os.PathLike) -> torch.nn.Module:
        """The model with the task's head: from a pre-trained directory (new head) or from a fine-tuned one."""

    def collate(self, examples: Sequence[Example]) -> tuple[PackedBatch, dict[str, Any]]:
        """A packed batch, and the keyword arguments for calling the model: labels, unless an example has none, and
        whatever else the head needs."""
        return packed(examples), labels_of(examples)

    def outputs(self, out: Any, batch: PackedBatch) -> list[np.ndarray]:
        """The model's output for each example of a batch: by default its row of the (B, C) logits, in fp32."""
        return list(out.logits.float().cpu().numpy())

    @abc.abstractmethod
    def decode(self, rows: Sequence[Row], examples: Sequence[Example], outputs: Sequence[np.ndarray]) -> list:
        """One prediction for each row, from the outputs of its examples."""

    def metrics_of(self, rows: Sequence[Row]) -> tuple[str, ...]:
        """The names of the metrics for these rows: `metrics`, unless a data set has additional ones."""
        return self.metrics

    @abc.abstractmethod
    def metric(self, rows: Sequence[Row], predictions: Sequence) -> dict[str, float]:
        """Computes the official metrics, named as in `metrics_of`."""

    @abc.abstractmethod
    def write_predictions(self, rows: Iterable[Row], predictions: Iterable, path: str | os.PathLike) -> list[Path]:
        """Writes predictions in the official submission format; a task that `streams` writes them one by one. Returns
        the files, none for standard output (``-``)."""

    @abc.abstractmethod
    def read_predictions(self, rows: Sequence[Row], path: str | os.PathLike) -> list:
        """Reads predictions in the official submission format: one for each row, in the order of the rows."""

    def submission_name(self, data: str | os.PathLike) -> str:
        """The official name of the predictions for a file of data; by default `submission`."""
        return self.submission

    def guess(self, rows: Sequence[Row]) -> list | None:
        """Predictions made without looking at the texts, such as the most frequent label for every row; None if the
        task has none. A model that is no better has learned nothing."""
        return None

    def tables(self, rows: Sequence[Row], predictions: Sequence) -> dict[str, list[Sequence]]:
        """Tables for the report, by name: each is a header and lines of strings, whole numbers and floats."""
        return {}

    def errors(self, rows: Sequence[Row], predictions: Sequence) -> Iterable[dict]:
        """A dictionary for each row that was predicted wrongly, to be read by people."""
        for row, prediction in zip(rows, predictions, strict=True):
            if row.label != prediction:
                yield {"id": row.id, "texts": list(row.texts), "label": row.label, "prediction": prediction}


def packed(examples: Iterable[Example]) -> PackedBatch:
    """The sequences of examples, end to end."""
    from ..packing import PackedBatch

    pairs = [(e.input_ids, e.token_type_ids) for e in examples]
    return PackedBatch.from_sequences([ids for ids, _ in pairs], [types for _, types in pairs])


def by_sequence(values: np.ndarray, batch: PackedBatch) -> list[np.ndarray]:
    """Values of the tokens of a batch, (T, ...), apart for each sequence."""
    return [values[begin:end] for begin, end in itertools.pairwise(batch.cu_seqlens.tolist())]


def labels_of(examples: Sequence[Example]) -> dict[str, torch.Tensor]:
    """The keyword argument ``labels``, (B,), or (B, labels) float32 of zeros and ones, if every example has a label."""
    import torch

    labels = [e.label for e in examples]
    if any(label is None for label in labels):
        return {}
    hot = isinstance(labels[0], np.ndarray)
    return {"labels": torch.from_numpy(np.stack(labels)).float() if hot else torch.tensor(labels)}


@dataclass(frozen=True)
class LabelColumns:
    """Where a task has looked for labels.

    Args:
        where: the file and line of the header.
        names: the names that the column of labels may have.
        found: the columns that there are.
    """

    where: str
    names: Sequence[str]
    found: Sequence[str]


def require_labels(task: Task, rows: Sequence[Row], path: str | os.PathLike) -> list[Row]:
    """The rows with labels; the others are bad rows (SNLI has some without, on which its annotators disagreed).

    Args:
        task: the task that read the rows from the path.

    Raises:
        DataError: no row has a label, or ``task.bad_rows`` does not skip those without.
    """
    kept = [row for row in rows if row.label is not None]
    if not kept:
        raise DataError(_without_labels(task, rows, path))
    for row in rows:
        if row.label is None:
            task.bad_rows.refuse(
                f"{called(path)}, the row of index {row.id}: expected a label as in other rows, got none"
            )
    return kept


def _without_labels(task: Task, rows: Sequence[Row], path: str | os.PathLike) -> str:
    """The message about a file in which no row has a label."""
    columns = task.looked_for
    if columns is None:
        return f"{called(path)}: expected {task.label_place}, got {task.unlabelled(rows)}"
    column = next((name for name in columns.names if name in columns.found), None)
    if column is None:
        found = shorten(", ".join(columns.found), 200)
        if getattr(task, "label_columns", None):
            expected, hint = f"the columns {', '.join(columns.names)} of labels", " (--label-columns names others)"
        else:
            expected = f"a column {' or '.join(columns.names)} with the label of every row"
            hint = " (--label-column names another)" if hasattr(task, "label_column") else ""
        return f"{columns.where}: expected {expected}, got the columns {found}{hint}"
    return f"{called(path)}: expected labels in the column {column}, got none in all rows"


def check_fit(task: Task, tokenizer: Tokenizer, config: ModelConfig, max_seqlen: int) -> None:
    """Raises InputError if a task, a tokenizer, or a maximum length in tokens, does not fit a model."""
    most = config.max_position_embeddings
    if max_seqlen < 3 or (most is not None and max_seqlen > most):
        bound = "at least 3" if most is None else f"between 3 and the model's max_position_embeddings, {most}"
        raise InputError(f"max_seqlen must be {bound}, got {max_seqlen}")
    first = names_of(tokenizer).cls_token
    if config.model_type == "bert" and tokenizer.token_to_id(first) is None:
        raise InputError(f"a BERT's input begins with {first}, got a tokenizer without this token")
    largest = max(tokenizer.get_vocab(with_added_tokens=True).values())
    if largest >= config.vocab_size:
        raise InputError(
            f"the tokenizer's ids go up to {largest}, but the model's vocab_size is {config.vocab_size}: "
            "they do not belong together"
        )
    types = getattr(config, "type_vocab_size", None)
    if task.pairs and types == 1 and has_types(tokenizer):
        raise InputError(
            f"task {task.name}: expected a model for pairs of texts, with a type_vocab_size of 2 or more in its "
            f"config.json, got {types}"
        )


def softmax(scores: np.ndarray) -> np.ndarray:
    """(..., C) scores of classes -> their probabilities, float64."""
    shares = np.exp(np.float64(scores) - np.max(scores, -1, keepdims=True))
    return shares / shares.sum(-1, keepdims=True)
