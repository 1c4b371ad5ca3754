"""What the labels of exported files mean: the words of a task or their numbers, in the order that the file gives or
else GLUE's; -1 means that there is none."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..errors import DataError
from .bad_rows import called
from .files import shorten
from .hub_files import class_number

if TYPE_CHECKING:
    from .text import TextTask

_log = logging.getLogger("fastbert")


def own_labels(task: TextTask) -> tuple[str, ...]:
    """The labels of a task as its class has them, since an instance's may be a model's; none for numbers and for the
    user's own classes."""
    return getattr(type(task), "labels", ())


def _label_names(task: TextTask) -> tuple[str, ...]:
    """The names of `own_labels`; none if these are words themselves."""
    return getattr(type(task), "label_names", None) or ()


def exported_label(task: TextTask, value: Any, names: Sequence[str]) -> str | None:
    """A label in the form of the task's own files; None for no label.

    Args:
        task: the task.
        value: what the file has: a class number, a word or a bool.
        names: the names of the file's classes, if it has any; if they are those of the task, they give the order.
    """
    text = str(int(value) if isinstance(value, bool) else value).strip()
    if text in task.no_label:
        return None
    number, words = class_number(value, names), own_labels(task)
    if number is not None and number < len(names):
        in_order = _in_order_of(task, names)
        if in_order is not None:
            return in_order[number]
        if len(names) != len(words):
            text = names[number]  # with another number of classes, the file's numbers are not the task's
            number = class_number(text)
    if isinstance(value, bool) and words and text not in words:
        return str(value)  # not a class number: in WiC and BoolQ True is the first of two classes, elsewhere the second
    if not words or text in words:
        return text
    if number is not None and number < len(words):
        return words[number]
    for own in (words, _label_names(task)):
        lower = [name.lower() for name in own]
        if text.lower() in lower:
            return words[lower.index(text.lower())]
    return text


def check_class_names(task: TextTask, path: str | os.PathLike, names: Sequence[str]) -> None:
    """Warns of a file with as many classes as the task but other names, whose order may be another.

    Raises:
        DataError: one of these names is the task's, in another place, so that the order is another.
    """
    words = own_labels(task)
    if len(names) != len(words) or _in_order_of(task, names) is not None:
        return
    own = _label_names(task) or words
    said = f"{called(path)}: expected its classes to be called {', '.join(own)}, got {shorten(', '.join(names))}"
    moved = next(
        (name for name, mine in zip(names, own, strict=True) if name.lower() in own and name.lower() != mine), None
    )
    if moved is not None:
        raise DataError(f"{said}, in which {moved} has another place")
    _log.warning("%s: they are taken in this order", said)


def say_if_number(task: TextTask, path: str | os.PathLike, label: Any) -> None:
    """Warns of a number in a column of labels that is not GLUE's, where the task has words: in ASSIN 2, 1 is
    entailment, and 0 is in GLUE."""
    words = own_labels(task)
    if words and str(label) not in words and class_number(label) is not None:
        order = ", ".join(f"{number} {word}" for number, word in enumerate(words))
        _log.warning("%s: the numbers in the column %s are taken for %s", called(path), task.label_column, order)


def _in_order_of(task: TextTask, names: Sequence[str]) -> Sequence[str] | None:
    """The task's labels in the order of a file's class names; None if these are not the task's names."""
    words = own_labels(task)
    if not words:
        return names
    lower = [name.lower() for name in names]
    for own in (words, _label_names(task)):
        if sorted(lower) == sorted(own):
            return [words[own.index(name)] for name in lower]
    try:
        found = [task.parse(name) for name in names]  # labels have other names in some sets
    except ValueError:
        return None
    return found if sorted(found) == sorted(words) else None
