"""Telling words with CoNLL's columns from plain sentences: each would be read as the other without an error."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence

from ..errors import DataError
from .conll_columns import DOCUMENT, split
from .conll_words import Columns, Lines, is_any_tag
from .files import shorten
from .typed import has_form, json_or_none

_LOOKED_AT = 200
"""The most lines that are read ahead to see what a file is."""


HINT = "; --sentences reads a sentence a line"
"""What the user of `predict` can do about sentences where words are expected."""


def refuse_lone_lines(path: str, lines: Lines, columns: Columns, hint: str = "") -> None:
    """Raises DataError for a file without tags whose every line has several columns and an empty line after it: whole
    sentences, whose words would be taken for columns.

    Args:
        path: the file's name, for messages.
        lines: number and text of every line, by sentence.
        columns: the columns of the same lines.
        hint: what the user can do about it, for messages.
    """
    alone = all(len(sentence) <= 1 for sentence in columns)
    if alone and all(len(of_line) > 1 for sentence in columns for of_line in sentence):
        _refuse(path, lines, hint)


def refuse_running_text(path: str, lines: Lines, columns: Columns) -> None:
    """Raises DataError for sentences in lines that follow each other. Arguments are those of `refuse_lone_lines`.

    Most of them have several words, of which the last is no tag, and either not the same number of words, or last words
    that differ and are not in capitals, as parts of speech are.
    """
    fields = list(itertools.chain(*columns))
    lasts = [of_line[-1] for of_line in fields if len(of_line) > 1]
    tagged = 2 * sum(map(is_any_tag, lasts)) >= len(lasts)
    if 2 * len(lasts) <= len(fields) or tagged or any("\t" in text for sentence in lines for _, text in sentence):
        return
    uneven = 2 * max(Counter(map(len, fields)).values()) <= len(fields)
    small = sum(any(c.isalpha() and not c.isupper() for c in last) for last in lasts)
    if uneven or (2 * small > len(lasts) and 2 * len(set(lasts)) > len(lasts)):
        _refuse(path, lines, HINT)


def _refuse(path: str, lines: Lines, hint: str) -> None:
    """Raises DataError for whole sentences, unless there are no lines."""
    for number, text in itertools.chain(*lines):
        raise DataError(
            f"{path}, line {number}: expected a word a line and an empty line after each sentence, got several: "
            f"{shorten(text)!r}{hint}"
        )


def refuse_columns(path: str, texts: Iterator[tuple[int, str]], keys: Sequence[str]) -> Iterator[tuple[int, str]]:
    """The lines of a file of plain sentences.

    Args:
        path: the file's name, for messages.
        texts: the lines with their numbers.
        keys: the keys that a JSON object may have for its words.

    Raises:
        DataError: the first lines are words, with or without CoNLL's columns, or JSON.
    """
    read = list(itertools.islice(texts, _LOOKED_AT))
    written = [(number, text) for number, text in read if text.strip(" \t")]
    if written:
        number, first = written[0]
        where = f"{path}, line {number}: expected a sentence in each line, got"
        if has_form(json_or_none(first), [[key] for key in keys]):
            raise DataError(f"{where} JSON, which is read from a file called .jsonl, without --sentences")
        if _are_words([split(text) for _, text in written]):
            raise DataError(
                f"{where} a word a line with CoNLL's columns, which is read without --sentences: {shorten(first)!r}"
            )
    return itertools.chain(read, texts)


def _are_words(fields: Sequence[Sequence[str]]) -> bool:
    """Whether these lines are words with their tags, or have the same number of columns throughout, and marks of
    punctuation alone as some, not most, of the words."""
    tagged = sum(len(of_line) > 1 and is_any_tag(of_line[-1]) for of_line in fields)
    if fields[0][0] == DOCUMENT or (len(fields) > 1 and 2 * tagged > len(fields)):
        return True
    marks = sum(not any(map(str.isalnum, first)) for first, *_ in fields)
    return len(set(map(len, fields))) == 1 and 0 < 2 * marks < len(fields)
