"""The definition of a study: its columns and rows, and the recipes that follow from them; importable without torch."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import InputError
from ..options import fitted_options
from ..tasks.config import FinetuneConfig
from ..train.config import PretrainConfig

BUILTIN = "builtin"
PERPLEXITY = "held-out perplexity"
# Options that a study sets for each of its pre-trainings, so that a file must not.
_OURS = ("data", "out", "seed", "resume", "epochs", "max_minutes", "cache", "cache_gb", "phases")


@dataclass(frozen=True, kw_only=True)
class TaskSpec:
    """One column of the table.

    Args:
        column: its name, the key in the file.
        task: the name of the task for `fastbert finetune`; by default the column's name.
        train, dev: the files, below the data directory unless absolute.
        dev_share: in place of dev, the share of the training rows to evaluate on.
        train_rows, dev_rows: the most rows, spread evenly over the file, and the same for every row and seed.
        metric: the metric in the table; by default the task's first.
        paper: the column of the paper's table to compare with; "" for none.
        features: trains a BiLSTM on these features of the frozen model, in place of the model (ner).
        feature_units: the units of that BiLSTM in each direction; by default 768, as in the paper.
        dropout: the model's dropout rate during fine-tuning.
        finetune: options of `fastbert finetune`.
        feature_finetune: options in place of those if features are used.
    """

    column: str
    train: str
    task: str = ""
    dev: str | None = None
    dev_share: float | None = None
    train_rows: int | None = None
    dev_rows: int | None = None
    metric: str = ""
    paper: str = ""
    features: str | None = None
    feature_units: int | None = None
    dropout: float = 0.1
    finetune: dict = field(default_factory=dict)
    feature_finetune: dict = field(default_factory=dict)

    def config(self, seed: int) -> FinetuneConfig:
        """The recipe of one fine-tuning."""
        options = self.finetune if self.features is None else self.feature_finetune
        if "seed" in options:
            raise InputError(f"task {self.column}: seed is the study's own to decide, expected no such option")
        where = f"task {self.column}"
        with named(where):
            return FinetuneConfig(**{**fitted_options(options, FinetuneConfig, where), "seed": seed})


@dataclass(frozen=True, kw_only=True)
class RowSpec:
    """One row of the table: a pre-training, and how its model is used.

    Args:
        pretrain: options of `fastbert pretrain`, which override the study's.
        static: options of word2vec (`train.word2vec.Word2VecConfig`), which is trained on the same tokens in place of a
            pre-training.
        task: changes to every task of the study (features: last; finetune: {...}).
        at: the share of the pre-training after which its model is taken.
        keep: further shares after which models are kept, for other studies.
        paper: the paper's figures, by the columns of its table.
    """

    name: str
    pretrain: dict = field(default_factory=dict)
    static: dict | None = None
    task: dict = field(default_factory=dict)
    at: float = 1.0
    keep: tuple[float, ...] = ()
    paper: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Study:
    """A study at one scale.

    Args:
        name, title, about: the texts of the report.
        source, text: the file from which it was read, and what stood in it then.
        corpus: "builtin", or text files as for `fastbert prepare`.
        vocab_size, lowercase, heldout: the settings of the vocabulary, and the held-out share of the documents.
        data_dir: the directory of the tasks' files.
        seeds: each is used for a pre-training and for the fine-tunings of its model.
        perplexity: the paper's column of the held-out perplexity; "" if the table has none.
        polysemy: whether the rows' models are also tested for telling the senses of words apart.
        rows, tasks: the rows and columns of the table.
    """

    name: str
    scale: str
    source: str = ""
    text: str = ""
    title: str = ""
    about: str = ""
    corpus: tuple[str, ...] = (BUILTIN,)
    vocab_size: int
    lowercase: bool = False
    heldout: float = 0.05
    data_dir: str = ""
    seeds: tuple[int, ...]
    perplexity: str = ""
    polysemy: bool = False
    pretrain: dict
    rows: tuple[RowSpec, ...]
    tasks: tuple[TaskSpec, ...]

    def pretraining(self, row: RowSpec, seed: int, data: str | os.PathLike, out: str | os.PathLike) -> PretrainConfig:
        """The recipe of a row's pre-training. Raises InputError for an invalid option."""
        values = merge(self.pretrain, row.pretrain)
        where = f"{self.source}, row {row.name!r}"
        taken = [name for name in _OURS if name in values]
        if taken:
            raise InputError(f"{where}: {', '.join(taken)} is the study's own to decide, expected no such option")
        if values.get("steps") is None:
            raise InputError(f"{where}: expected steps in pretrain, so that every row does as much, got none")
        values |= {"data": os.fspath(data), "out": os.fspath(out), "seed": seed, "resume": "auto"}
        if isinstance(values.get("model"), str):  # perhaps a directory
            values["model"] = os.path.expanduser(values["model"])
        samples = values.get("samples") or {}
        if not isinstance(samples, dict):
            raise InputError(f"{where}: expected samples in pretrain, a mapping of options, got {samples!r:.60}")
        values["samples"] = {"seed": seed, **samples}
        with named(where):
            return PretrainConfig.from_mapping(values, where)

    def task_of(self, row: RowSpec, task: TaskSpec) -> TaskSpec:
        """A column, with the changes of one row."""
        merged, where = merge(dataclasses.asdict(task), row.task), f"{self.source}, row {row.name!r}, task"
        found = TaskSpec(**fitted_options(merged, TaskSpec, where))
        if (found.column, found.task, found.metric) != (task.column, task.task, task.metric):
            raise InputError(f"{where}: column, task and metric are those of the whole column, expected none of them")
        check_task(found, where)
        return found

    def file(self, path: str) -> Path:
        """The path of a task's file. Raises InputError if it does not exist."""
        found = Path(os.path.expanduser(self.data_dir)) / os.path.expanduser(path)  # no shell has read them
        if not found.is_file():
            raise InputError(f"study {self.name} needs {found}, found no such file: --data-dir says where task data is")
        return found


@contextlib.contextmanager
def named(where: str) -> Iterator[None]:
    """Puts ``where``, the place in the study, before the message of an InputError in the block."""
    try:
        yield
    except InputError as error:
        said = str(error)
        raise InputError(said if said.startswith(where) else f"{where}: {said}") from None


def predicts_words(config: PretrainConfig) -> bool:
    """Whether a pre-training predicts words, and not only next sentences."""
    return config.samples.objective != "mlm" or config.samples.mlm_probability > 0


def merge(base: dict, over: dict) -> dict:
    """Merges nested mappings; values in ``over`` take precedence."""
    result = copy.deepcopy(base)
    for name, value in over.items():
        below = result.get(name)
        result[name] = merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return result


def check_task(task: TaskSpec, where: str) -> None:
    """Raises InputError for an invalid value, which would otherwise only be noticed after the pre-training."""
    if (task.dev is None) == (task.dev_share is None):
        got = "neither" if task.dev is None else "both"
        raise InputError(f"{where}: expected either dev or dev_share, got {got}")
    for name in ("train_rows", "dev_rows", "feature_units"):
        value = getattr(task, name)
        if value is not None and value < 1:
            raise InputError(f"{where}: {name} must be at least 1, or null, got {value}")
    if not 0 <= task.dropout < 1:
        raise InputError(f"{where}: dropout must be at least 0 and below 1, got {task.dropout:g}")
