"""Warnings of labels in a user's own file that are perhaps not what they are taken for."""

from __future__ import annotations

import logging
import os
import re
import unicodedata
from collections import Counter

from ..wording import counted
from .bad_rows import called
from .files import shorten

_log = logging.getLogger("fastbert")
NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")
MANY = 20
"""With at least this many labels, a warning is given if most of them occur once."""


def say_what_looks_wrong(counts: Counter[str], rows: int, path: str | os.PathLike) -> None:
    """Warns of one class in two spellings, of a missing value, and of labels that are no classes.

    Args:
        counts, rows: how often each label occurs in the training rows, and their number.
        path: their file.
    """
    _spelled_twice(counts, path)
    _missing(counts, path)
    _no_classes(counts, rows, path)


def _spelled_twice(counts: Counter[str], path: str | os.PathLike) -> None:
    """Warns of one class in two spellings."""
    spellings: dict[str, str] = {}
    for label in sorted(counts):
        other = spellings.setdefault(_spelled(label), label)
        if other != label:
            same = "the same number" if NUMBER.fullmatch(_spelled(label)) else "one word in two spellings"
            _log.warning(
                "%s: the labels %s and %s are %s, but are taken for two classes",
                called(path),
                shorten(other),
                shorten(label),
                same,
            )
            return


def _missing(counts: Counter[str], path: str | os.PathLike) -> None:
    """Warns of a class whose name is how programs write a missing value."""
    missing = next((label for label in counts if label.lower() in ("null", "nan")), None)
    if missing is not None:
        _log.warning(
            "%s: the label of %s is %s, which is taken for a class: leave such rows out if it means that there is none",
            called(path),
            counted(counts[missing], "row"),
            missing,
        )


def _no_classes(counts: Counter[str], rows: int, path: str | os.PathLike) -> None:
    """Warns of labels of which most occur once: it may be a task for regression, or the wrong column."""
    if counts.total() >= MANY and 2 * len(counts) > counts.total():
        _log.warning(
            "%s: expected classes that occur in several rows, got %d labels in %d rows: text-regression estimates "
            "numbers, and --label-column names another column",
            called(path),
            len(counts),
            rows,
        )


def _spelled(label: str) -> str:
    """One spelling for labels that people would take for the same."""
    text = unicodedata.normalize("NFKC", label).casefold()
    text = " ".join("".join(mark for mark in text if unicodedata.category(mark) != "Cf").split())
    return str(float(text)) if NUMBER.fullmatch(text.removeprefix("+")) else text
