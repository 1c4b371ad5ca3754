"""What a study is: a small YAML file, read at one scale; importable without torch.

Any value of the file may be a mapping with the keys smoke, small and base; the study is read at one of them. What a
file does not say is in defaults.yaml.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..files import read_yaml
from ..tasks.config import FinetuneConfig
from ..train.config import PretrainConfig, fitted_options

SCALES = ("smoke", "small", "base")
BUILTIN = "builtin"
PERPLEXITY = "held-out perplexity"
_HERE = Path(__file__).resolve().parent
# Keys of a file with one value, which must be of its field's type.
_PLAIN = (
    "name",
    "title",
    "about",
    "vocab_size",
    "lowercase",
    "heldout",
    "data_dir",
    "perplexity",
    "polysemy",
    "pretrain",
)
# What a study decides for each of its pre-trainings, so that a file cannot.
_OURS = ("data", "out", "seed", "resume", "epochs", "max_minutes", "cache", "cache_gb", "phases")


@dataclass(frozen=True, kw_only=True)
class TaskSpec:
    """One column of the table.

    Args:
        column: its name, the key in the file.
        task: what `fastbert finetune` calls the task; the column's name where it is not given.
        train, dev: files, below the data directory unless absolute.
        dev_share: in place of dev, the share of the training rows to evaluate on.
        train_rows, dev_rows: the most rows, spread evenly over the file, the same ones for every row and seed.
        metric: the one in the table; the task's first by default.
        paper: the column of the paper's table that it stands beside; empty for none.
        features: a BiLSTM on these features of the frozen model, in place of the model (ner).
        feature_units: of that BiLSTM each way; the paper's 768 by default.
        dropout: of the model while it is fine-tuned.
        finetune: options of `fastbert finetune`.
        feature_finetune: in place of those where features are used.
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
        pretrain: options of `fastbert pretrain`, over the study's.
        static: in place of a pre-training, options of word2vec (`train.word2vec.Word2VecConfig`), from the same tokens.
        task: changes to every task of the study (features: last; finetune: {...}).
        at: the share of the pre-training after which its model is taken.
        keep: shares after which models are kept besides, so that another study finds them.
        paper: the paper's figures by the columns of its table.
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
        name, title, about: of the report.
        source: where it was read from.
        corpus: "builtin", or text files as `fastbert prepare` takes them.
        vocab_size, lowercase, heldout: of the vocabulary and the held-out share of the documents.
        data_dir: where the files of tasks are.
        seeds: each governs a pre-training and what is fine-tuned from it.
        perplexity: the paper's column for the held-out perplexity; empty where the table has none.
        polysemy: whether the rows' models are asked to tell the senses of words apart besides.
        rows, tasks: of the table.
    """

    name: str
    scale: str
    source: str = ""
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
        """The recipe of a row's pre-training. Raises InputError for an option that does not fit."""
        values = _merged(self.pretrain, row.pretrain)
        where = f"{self.source}, row {row.name!r}"
        taken = [name for name in _OURS if name in values]
        if taken:
            raise InputError(f"{where}: {', '.join(taken)} is the study's own to decide, expected no such option")
        if values.get("steps") is None:
            raise InputError(f"{where}: expected steps in pretrain, so that every row does as much, got none")
        values |= {"data": os.fspath(data), "out": os.fspath(out), "seed": seed, "resume": "auto"}
        samples = values.get("samples") or {}
        if not isinstance(samples, dict):
            raise InputError(f"{where}: expected samples in pretrain, a mapping of options, got {samples!r:.60}")
        values["samples"] = {"seed": seed, **samples}
        with named(where):
            return PretrainConfig.from_mapping(values, where)

    def task_of(self, row: RowSpec, task: TaskSpec) -> TaskSpec:
        """A column as one row has it."""
        merged, where = _merged(dataclasses.asdict(task), row.task), f"{self.source}, row {row.name!r}, task"
        found = TaskSpec(**fitted_options(merged, TaskSpec, where))
        if (found.column, found.task, found.metric) != (task.column, task.task, task.metric):
            raise InputError(f"{where}: column, task and metric are those of the whole column, expected none of them")
        _check_task(found, where)
        return found

    def file(self, path: str) -> Path:
        """A task's file. Raises InputError where it is not there."""
        found = Path(self.data_dir) / path
        if not found.is_file():
            raise InputError(f"study {self.name} needs {found}, found no such file: --data-dir says where task data is")
        return found


@contextlib.contextmanager
def named(where: str) -> Iterator[None]:
    """A recipe's own sentence about a value, after the place where the study has it."""
    try:
        yield
    except InputError as error:
        said = str(error)
        raise InputError(said if said.startswith(where) else f"{where}: {said}") from None


def names() -> list[str]:
    """The studies that come with the package."""
    return sorted(path.stem for path in (_HERE / "recipes").glob("*.yaml"))


def find(name: str) -> Path:
    """The file of a study: one that comes with the package, or any YAML file.

    Raises:
        InputError: neither.
    """
    if name in names():
        return _HERE / "recipes" / f"{name}.yaml"
    if name.endswith((".yaml", ".yml")):
        return Path(name)
    raise InputError(f"no study is called {name!r}; there are {', '.join(names())}, or any file that ends in .yaml")


def read(path: str | os.PathLike, scale: str, **given: Any) -> Study:
    """Reads a study.

    Args:
        scale: one of `SCALES`.
        given: values of `Study` that win over the file's; None is passed over.

    Raises:
        InputError: no such file, no YAML, a key that is not known, or a value that does not fit.
    """
    path = Path(path)
    if scale not in SCALES:
        raise InputError(f"a scale is one of {', '.join(SCALES)}, got {scale!r}")
    values = _at_scale(read_yaml(path), scale, str(path))
    values |= {name: value for name, value in given.items() if value is not None}
    defaults = _at_scale(read_yaml(_HERE / "defaults.yaml"), scale, "defaults.yaml")
    known = {f.name for f in dataclasses.fields(Study)} - {"scale", "source"} | {"at"}
    unknown = set(values) - known
    if unknown:
        raise InputError(f"{path}: unknown key {', '.join(sorted(map(str, unknown)))}; known are {_listed(known)}")
    task_defaults = defaults.pop("tasks")
    tasks = _tasks(values.pop("tasks", None), task_defaults, path)
    given_rows, shares = values.pop("rows", None), values.pop("at", None)
    rows = _at(_rows(given_rows, path), shares, path, [row["name"] for row in given_rows if "at" in row])
    merged = _merged(defaults, values)
    merged["corpus"] = _corpus(merged["corpus"], path)
    merged |= fitted_options({name: value for name, value in merged.items() if name in _PLAIN}, Study, path)
    merged["seeds"] = tuple(merged["seeds"]) if isinstance(merged["seeds"], (list, tuple)) else (merged["seeds"],)
    merged.setdefault("name", path.stem)
    study = Study(scale=scale, source=str(path), rows=rows, tasks=tasks, **merged)
    _check(study, path)
    return study


def _corpus(value: Any, path: Path) -> tuple[str, ...]:
    files = [value] if isinstance(value, str) else value
    if isinstance(files, (list, tuple)) and BUILTIN in files and len(files) > 1:
        raise InputError(f"{path}: expected corpus, {BUILTIN} alone or text files, got both in {value!r:.60}")
    if not isinstance(files, (list, tuple)) or not files or not all(isinstance(file, str) for file in files):
        raise InputError(f"{path}: expected corpus, {BUILTIN} or text files, got {value!r:.60}")
    return tuple(files)


def _at_scale(value: Any, scale: str, source: str) -> Any:
    """The value with every mapping by scale replaced by what it has for this one."""
    if isinstance(value, dict):
        if value and set(value) <= set(SCALES):
            if scale not in value:
                raise InputError(f"{source}: expected a value for the scale {scale}, got only {_listed(value)}")
            return _at_scale(value[scale], scale, source)
        return {key: _at_scale(entry, scale, source) for key, entry in value.items()}
    if isinstance(value, list):
        return [_at_scale(entry, scale, source) for entry in value]
    return value


def _merged(base: dict, over: dict) -> dict:
    """Both, mapping by mapping; where both say something, ``over`` wins."""
    result = copy.deepcopy(base)
    for name, value in over.items():
        below = result.get(name)
        result[name] = _merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return result


def _tasks(given: Any, defaults: dict, path: Path) -> tuple[TaskSpec, ...]:
    if isinstance(given, list) and all(isinstance(column, str) for column in given):
        _check_different("tasks", given, path)
        given = dict.fromkeys(given)
    if not isinstance(given, dict) or not given:
        raise InputError(f"{path}: expected tasks, a mapping of columns or a list of names, got {given!r:.60}")
    found = []
    for column, changes in given.items():
        _check_line("column", column, f"{path}, tasks")
        changes = changes or {}
        if not isinstance(changes, dict):
            raise InputError(f"{path}, task {column}: expected a mapping of options, got {changes!r:.60}")
        like = changes.get("task", column)
        if not isinstance(like, str):
            raise InputError(f"{path}, task {column}: task must be str, got {like!r:.60}")
        values = _merged(defaults.get(column) or defaults.get(like) or {}, changes)
        values.setdefault("task", str(column))
        if "train" not in values:
            raise InputError(f"{path}, task {column}: expected train, the file of its training rows, got none")
        where = f"{path}, task {column}"
        found.append(TaskSpec(**fitted_options({**values, "column": str(column)}, TaskSpec, where)))
        _check_task(found[-1], where)
    return tuple(found)


def _check_task(task: TaskSpec, where: str) -> None:
    """Raises InputError for a value that would be found out when a model has been pre-trained for it."""
    if (task.dev is None) == (task.dev_share is None):
        raise InputError(f"{where}: expected either dev or dev_share, got both or neither")
    for name in ("train_rows", "dev_rows", "feature_units"):
        value = getattr(task, name)
        if value is not None and value < 1:
            raise InputError(f"{where}: {name} must be at least 1, or null, got {value}")
    if not 0 <= task.dropout < 1:
        raise InputError(f"{where}: dropout must be at least 0 and below 1, got {task.dropout:g}")


def _rows(given: Any, path: Path) -> tuple[RowSpec, ...]:
    if not isinstance(given, list) or not given or not all(isinstance(row, dict) and "name" in row for row in given):
        raise InputError(f"{path}: expected rows, a list of mappings each with a name, got {given!r:.60}")
    rows = []
    for row in given:
        where = f"{path}, row {row['name']!r}"
        values = dict(row)
        keep, paper = values.pop("keep", None) or [], values.pop("paper", None) or {}
        if not isinstance(keep, list) or not isinstance(paper, dict):
            raise InputError(
                f"{where}: expected keep, a list, and paper, a mapping, got {keep!r:.60} and {paper!r:.60}"
            )
        keep, paper = tuple(keep), {str(k): v for k, v in paper.items()}
        if not all(type(v) in (int, float) and math.isfinite(v) for v in paper.values()):
            raise InputError(f"{where}: expected numbers in paper, got {paper!r:.60}")
        if not all(isinstance(share, int | float) and 0 < share < 1 for share in keep):
            raise InputError(f"{where}: expected shares between 0 and 1 in keep, got {keep!r:.60}")
        _check_line("name", row["name"], where)
        rows.append(
            RowSpec(**fitted_options({**values, "name": str(row["name"])}, RowSpec, where), keep=keep, paper=paper)
        )
    return tuple(rows)


def _check_line(what: str, name: Any, where: str) -> None:
    """Raises InputError for a name that a line of a table has no place for."""
    if type(name) not in (str, int, float) or len(str(name).strip().splitlines()) != 1:
        raise InputError(f"{where}: expected {what}, a line of text, got {name!r:.60}")


def _check_different(what: str, names: Iterable[str], path: Path) -> None:
    names = list(names)
    if twice := {name for name in names if names.count(name) > 1}:
        raise InputError(f"{path}: expected {what} of different names, got {_listed(twice)} twice")


def _at(rows: tuple[RowSpec, ...], shares: Any, path: Path, own: Sequence[str]) -> tuple[RowSpec, ...]:
    """Each row once for every share of its pre-training, where the study asks for some; ``own`` are rows that do."""
    if shares is None:
        return rows
    if not isinstance(shares, list) or not shares or not all(type(s) in (int, float) and 0 < s <= 1 for s in shares):
        raise InputError(f"{path}: expected at, a list of shares of the pre-training up to 1, got {shares!r:.60}")
    if own:
        raise InputError(
            f"{path}, row {own[0]!r}: expected at of the row, or of the study, which makes rows of all shares: got both"
        )
    return tuple(
        dataclasses.replace(row, name=f"{row.name}, {100 * share:g} %", at=float(share))
        for row in rows
        for share in shares
    )


def predicts_words(config: PretrainConfig) -> bool:
    """Whether a pre-training asks for words, and not for next sentences alone."""
    return config.samples.objective != "mlm" or config.samples.mlm_probability > 0


def _check(study: Study, path: Path) -> None:
    """Raises InputError for what no single value shows."""
    _check_different("rows", (row.name for row in study.rows), path)
    # The column of perplexities is found by its name too.
    own = [PERPLEXITY] if study.perplexity else []
    _check_different("tasks", (*own, *(task.column for task in study.tasks)), path)
    if (
        not study.seeds
        or not all(type(seed) is int and 0 <= seed < 1 << 64 for seed in study.seeds)
        or len(set(study.seeds)) < len(study.seeds)
    ):
        raise InputError(
            f"{path}: expected seeds, a list of different whole numbers from 0 to 2^64 - 1, got {study.seeds!r:.60}"
        )
    plain = study.name.isprintable() and len(study.name) <= 100
    if not study.name or not plain or study.name == ".." or Path(study.name).name != study.name:
        raise InputError(
            f"{path}: name is that of the report's directory too, expected no path and 100 characters at most, "
            f"got {study.name!r:.60}"
        )
    if not 0 < study.heldout < 1:
        raise InputError(f"{path}: heldout is a share of the documents above 0 and below 1, got {study.heldout!r:.60}")
    papers = {column for row in study.rows for column in row.paper}
    for task in study.tasks:
        if task.paper and papers and task.paper not in papers:
            raise InputError(
                f"{path}, task {task.column}: expected paper, a column that rows have figures of "
                f"({_listed(papers)}), got {task.paper!r:.60}"
            )
    for row in study.rows:
        if not 0 < row.at <= 1:
            raise InputError(
                f"{path}, row {row.name!r}: expected at, a share of the pre-training up to 1, got {row.at:g}"
            )
        config = study.pretraining(row, study.seeds[0], "", "")
        if study.perplexity and (row.static is not None or not predicts_words(config)):
            what = "static vectors have" if row.static is not None else "a model that predicts no words has"
            raise InputError(f"{path}, row {row.name!r}: {what} no perplexity, expected another model")
        for task in study.tasks:
            study.task_of(row, task).config(study.seeds[0])


def _listed(values) -> str:
    return ", ".join(sorted(map(str, values)))
