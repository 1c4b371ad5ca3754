"""Reads a study, a small YAML file, at one scale; importable without torch.

Any value of the file may be a mapping with the keys smoke, small and base, of which the one of the scale is read. The
defaults are in defaults.yaml.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..options import fitted_options
from ..text_files import read_yaml
from .definition import BUILTIN, PERPLEXITY, RowSpec, Study, TaskSpec, check_task, merge, predicts_words

SCALES = ("smoke", "small", "base")
_HERE = Path(__file__).resolve().parent
# Keys of a file with a single value, which must have the type of its field.
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


def names() -> list[str]:
    """The studies that come with the package."""
    return sorted(path.stem for path in (_HERE / "recipes").glob("*.yaml"))


def find(name: str) -> Path:
    """The file of a study that comes with the package, or any YAML file.

    Raises:
        InputError: it is neither.
    """
    if name in names():
        return _HERE / "recipes" / f"{name}.yaml"
    if name.endswith((".yaml", ".yml")):
        return Path(name)
    raise InputError(f"no study is called {name!r}; there are {', '.join(names())}, or any file that ends in .yaml")


def read(path: str | os.PathLike, scale: str, **given: Any) -> Study:
    """Reads a study.

    Args:
        path: the file.
        scale: one of `SCALES`.
        given: fields of `Study` that replace the file's values, unless they are None.

    Raises:
        InputError: there is no such file, it is not YAML, a key is unknown, or a value is not valid.
    """
    path = Path(path)
    if scale not in SCALES:
        raise InputError(f"a scale is one of {', '.join(SCALES)}, got {scale!r}")
    values = _at_scale(read_yaml(path), scale, str(path))
    text = path.read_text(encoding="utf-8-sig")  # for the report: hours later the file may be another one
    values |= {name: value for name, value in given.items() if value is not None}
    defaults = _at_scale(read_yaml(_HERE / "defaults.yaml"), scale, "defaults.yaml")
    known = {f.name for f in dataclasses.fields(Study)} - {"scale", "source", "text"} | {"at"}
    unknown = set(values) - known
    if unknown:
        raise InputError(f"{path}: unknown key {', '.join(sorted(map(str, unknown)))}; known are {_listed(known)}")
    task_defaults = defaults.pop("tasks")
    tasks = _tasks(values.pop("tasks", None), task_defaults, path)
    given_rows, shares = values.pop("rows", None), values.pop("at", None)
    rows = _at(_rows(given_rows, path), shares, path, [row["name"] for row in given_rows if "at" in row])
    merged = merge(defaults, values)
    merged["corpus"] = _corpus(merged["corpus"], path)
    merged |= fitted_options({name: value for name, value in merged.items() if name in _PLAIN}, Study, path)
    merged["seeds"] = tuple(merged["seeds"]) if isinstance(merged["seeds"], (list, tuple)) else (merged["seeds"],)
    merged.setdefault("name", path.stem)
    study = Study(scale=scale, source=str(path), text=text, rows=rows, tasks=tasks, **merged)
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
    """The value, in which every mapping of scales is replaced by its value for this scale."""
    if isinstance(value, dict):
        if value and set(value) <= set(SCALES):
            if scale not in value:
                raise InputError(f"{source}: expected a value for the scale {scale}, got only {_listed(value)}")
            return _at_scale(value[scale], scale, source)
        return {key: _at_scale(entry, scale, source) for key, entry in value.items()}
    if isinstance(value, list):
        return [_at_scale(entry, scale, source) for entry in value]
    return value


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
            raise InputError(f"{path}, task {column}: task must be a text, got {like!r:.60}")
        values = merge(defaults.get(column) or defaults.get(like) or {}, changes)
        values.setdefault("task", str(column))
        if "train" not in values:
            raise InputError(f"{path}, task {column}: expected train, the file of its training rows, got none")
        where = f"{path}, task {column}"
        found.append(TaskSpec(**fitted_options({**values, "column": str(column)}, TaskSpec, where)))
        check_task(found[-1], where)
    return tuple(found)


def _rows(given: Any, path: Path) -> tuple[RowSpec, ...]:
    if not isinstance(given, list) or not given or not all(isinstance(row, dict) and "name" in row for row in given):
        raise InputError(f"{path}: expected rows, a list of mappings each with a name, got {given!r:.60}")
    return tuple(_row(row, f"{path}, row {row['name']!r}") for row in given)


def _row(given: dict, where: str) -> RowSpec:
    values = dict(given)
    keep, paper = values.pop("keep", None) or [], values.pop("paper", None) or {}
    if not isinstance(keep, list) or not isinstance(paper, dict):
        raise InputError(f"{where}: expected keep, a list, and paper, a mapping, got {keep!r:.60} and {paper!r:.60}")
    paper = {str(column): figure for column, figure in paper.items()}
    if not all(type(figure) in (int, float) and math.isfinite(figure) for figure in paper.values()):
        raise InputError(f"{where}: expected numbers in paper, got {paper!r:.60}")
    if not all(isinstance(share, int | float) and 0 < share < 1 for share in keep):
        raise InputError(f"{where}: expected shares between 0 and 1 in keep, got {tuple(keep)!r:.60}")
    _check_line("name", values["name"], where)
    options = fitted_options({**values, "name": str(values["name"])}, RowSpec, where)
    return RowSpec(**options, keep=tuple(keep), paper=paper)


def _check_line(what: str, name: Any, where: str) -> None:
    """Raises InputError for a name that does not fit into a line of a table."""
    if type(name) not in (str, int, float) or len(str(name).strip().splitlines()) != 1:
        raise InputError(f"{where}: expected {what}, a line of text, got {name!r:.60}")


def _check_different(what: str, names: Iterable[str], path: Path) -> None:
    names = list(names)
    if twice := {name for name in names if names.count(name) > 1}:
        raise InputError(f"{path}: expected {what} of different names, got {_listed(twice)} twice")


def _at(rows: tuple[RowSpec, ...], shares: Any, path: Path, own: Sequence[str]) -> tuple[RowSpec, ...]:
    """The rows, or if the study has shares (``at``) each row once for every share; ``own``: rows with a share."""
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


def _check(study: Study, path: Path) -> None:
    """Raises InputError for values that do not fit each other."""
    _check_different("rows", (row.name for row in study.rows), path)
    # The column of perplexities has a name too.
    own = [PERPLEXITY] if study.perplexity else []
    _check_different("tasks", (*own, *(task.column for task in study.tasks)), path)
    _check_plain(study, path)
    papers = {column for row in study.rows for column in row.paper}
    for task in study.tasks:
        if task.paper and papers and task.paper not in papers:
            raise InputError(
                f"{path}, task {task.column}: expected paper, a column that rows have figures of "
                f"({_listed(papers)}), got {task.paper!r:.60}"
            )
    for row in study.rows:
        _check_row(study, row, path)


def _check_plain(study: Study, path: Path) -> None:
    """Raises InputError for invalid seeds, an invalid name or an invalid share of held-out documents."""
    seeds, name = study.seeds, study.name
    fit = all(type(seed) is int and 0 <= seed < 1 << 64 for seed in seeds)
    if not seeds or not fit or len(set(seeds)) < len(seeds):
        raise InputError(
            f"{path}: expected seeds, a list of different whole numbers from 0 to 2^64 - 1, got {seeds!r:.60}"
        )
    plain = name.isprintable() and len(name) <= 100
    if not name or not plain or name == ".." or Path(name).name != name:
        raise InputError(
            f"{path}: name is that of the report's directory too, expected no path and 100 characters at most, "
            f"got {name!r:.60}"
        )
    if not 0 < study.heldout < 1:
        raise InputError(f"{path}: heldout is a share of the documents above 0 and below 1, got {study.heldout!r:.60}")


def _check_row(study: Study, row: RowSpec, path: Path) -> None:
    if not 0 < row.at <= 1:
        raise InputError(f"{path}, row {row.name!r}: expected at, a share of the pre-training up to 1, got {row.at:g}")
    config = study.pretraining(row, study.seeds[0], "", "")
    if study.perplexity and (row.static is not None or not predicts_words(config)):
        what = "static vectors have" if row.static is not None else "a model that predicts no words has"
        raise InputError(f"{path}, row {row.name!r}: {what} no perplexity, expected another model")
    tasks = [study.task_of(row, task) for task in study.tasks]
    for task in tasks:
        task.config(study.seeds[0])
    _check_reach(row, tasks, f"{path}, row {row.name!r}, task")


def _check_reach(row: RowSpec, tasks: Sequence[TaskSpec], where: str) -> None:
    """Raises InputError for options of a row that none of its columns reads: they would change nothing."""
    on_features = [task.features is not None for task in tasks]
    if row.task.get("finetune") and all(on_features):
        raise InputError(f"{where}: expected feature_finetune, since features are in every column, got finetune")
    if row.task.get("feature_finetune") and not any(on_features):
        raise InputError(f"{where}: expected finetune, since features are in no column, got feature_finetune")


def _listed(values) -> str:
    return ", ".join(sorted(map(str, values)))
