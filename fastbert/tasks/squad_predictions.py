"""SQuAD's files of predictions: JSON objects that map the ids of questions to texts or numbers."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ..errors import DataError
from ..result_files import atomic_write
from .files import load_json, shorten


def read_values(path: str | os.PathLike, kind: type | tuple[type, ...], what: str) -> dict[str, Any]:
    """Reads a JSON object that maps question ids to values.

    Args:
        path: the file.
        kind: the type of the values; floats must be finite.
        what: the values in words, for messages.

    Raises:
        DataError: the file has another form, a value has another type, or a question occurs twice.
    """

    value, text = load_json(path)
    if not isinstance(value, dict):
        raise DataError(f"{path}, line 1: expected a JSON object from ids to {what}, got {type(value).__name__}")
    names = [name for name, _ in json.loads(text, object_pairs_hook=list)]  # a dictionary only keeps the last of equals
    if len(names) > len(value):
        twice = next(name for name, count in Counter(names).items() if count > 1)
        raise DataError(f"{path}: expected every question once, got {shorten(twice)} again")
    for name, item in value.items():
        finite = not isinstance(item, float) or math.isfinite(item)
        if not isinstance(item, kind) or isinstance(item, bool) or not finite:
            raise DataError(f"{path}: expected {what} for question {name}, got {shorten(repr(item))}")
    return value


@contextlib.contextmanager
def written_values(path: str | os.PathLike) -> Iterator[Callable[[str, Any], None]]:
    """Writes a JSON object in the format of the official files; yields a function that adds a key and its value."""
    with atomic_write(path) as file:
        count = 0

        def add(name: str, value: Any) -> None:
            nonlocal count
            shown = json.dumps({name: value}, ensure_ascii=False, indent=2)
            file.write((",\n" if count else "{\n") + shown[2:-2])
            count += 1

        yield add
        file.write("\n}\n" if count else "{}\n")


def companions(path: str | os.PathLike, names: Sequence[str]) -> list[Path]:
    """The paths of files beside a file of predictions: of ``predictions.json`` with the names nbest_predictions and
    null_odds, ``nbest_predictions.json`` and ``null_odds.json``; none for standard output (``-``)."""
    path = Path(path)
    if str(path) == "-":
        return []
    if "predictions" in path.stem:
        return [path.with_name(path.stem.replace("predictions", name) + ".json") for name in names]
    return [path.with_name(f"{path.stem}_{name}.json") for name in names]
