"""Reading CoNLL's column files: sentences, columns, comments, headers.

Columns are separated by blanks or tabs, or only by tabs if words contain blanks. An empty line follows each sentence,
and a ``-DOCSTART-`` line precedes each document.
"""

from __future__ import annotations

import itertools
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from .bad_rows import STRICT, BadRows
from .files import read_lines
from .tagging import is_tag, letters_of, with_types

_DOCUMENT = "-DOCSTART-"
_BLANKS = re.compile(r"[ \t]+")
_COMMENT = re.compile(r"##?[ \t]|###MEDLINE:")
_HEADS_OF_WORDS = frozenset(["word", "words", "token", "tokens", "form"])
_HEADS = _HEADS_OF_WORDS.union(
    ["lemma", "pos", "pos_tag", "postag", "upos", "xpos", "chunk", "chunk_tag", "phrase"],
    ["ner", "ner_tag", "ner_tags", "netag", "entity", "iob", "bio", "tag", "tags", "label", "labels"],
)
"""The names that columns may have in header lines, in lower case."""


@dataclass
class Block:
    """One sentence of a file.

    Args:
        lines: (number, text) of each line.
        document: the number of the document, or None.
        opening: the -DOCSTART- line before the sentence, or None.
        broken: the reason why a line could not be read (it is not UTF-8), or None.
        columns: the columns of each line, once the separator is known.
    """

    lines: list[tuple[int, str]]
    document: int | None
    opening: str | None
    broken: str | None = None
    columns: list[list[str]] = field(default_factory=list)


def _blocks(path: str | os.PathLike, bad_rows: BadRows, documents: bool = True) -> Iterator[Block]:
    """The sentences of a file.

    Args:
        bad_rows: its ``encoding`` is that of lines that are not UTF-8. A line that cannot be read makes its block
            broken.
        documents: whether -DOCSTART- opens a document; otherwise it is a word.
    """
    block, unread = Block([], None, None), BadRows(True, bad_rows.hint, bad_rows.encoding)
    for number, line in read_lines(path, unread):
        _mark_broken(block, unread)
        if not line.strip(" \t\ufeff"):  # WNUT17's dev file ends with a byte-order mark
            whole = bool(block.lines or block.broken)
            if whole:
                yield block
            block = Block([], block.document, None if whole else block.opening)
        elif documents and _opens(line):
            if block.lines or block.broken:
                yield block
            block = Block([], 0 if block.document is None else block.document + 1, line)
        else:
            block.lines.append((number, line))
    bad_rows.decoded += unread.decoded
    _mark_broken(block, unread)
    if block.lines or block.broken:
        yield block


def _opens(line: str) -> bool:
    return _BLANKS.split(line.strip(" \t"), maxsplit=1)[0] == _DOCUMENT


def _mark_broken(block: Block, unread: BadRows) -> None:
    """Marks the block as broken if lines could not be read since the last call; the first reason is kept."""
    if unread.reasons:
        block.broken = block.broken or unread.reasons[0]
        unread.reasons.clear()


def split(line: str, tabs: bool = False) -> list[str]:
    """The columns of a line; a no-break space is part of a word. Strings are interned, since the whole file is held in
    memory and has few different ones.

    Args:
        line: the line.
        tabs: whether only tabs separate columns (`Table`).
    """
    line = line.strip(" \t")
    columns = line.split("\t") if tabs and "\t" in line else _BLANKS.split(line)
    return [sys.intern(column.strip(" ")) for column in columns]


def _by_tabs(blocks: Sequence[Block]) -> bool:
    """Whether only tabs separate the columns of a file, so that words may contain blanks: if at least half of the lines
    with a tab contain no blank. If a column was appended with a tab to columns separated by blanks, all lines do."""
    tabbed = [line for block in blocks for _, line in block.lines if "\t" in line]
    return bool(tabbed) and 2 * sum(split(line) == split(line, True) for line in tabbed) >= len(tabbed)


@dataclass(frozen=True)
class Table:
    """A file of columns.

    Args:
        blocks: its sentences, without comments.
        tabs: whether only tabs separate the columns.
        width: the number of columns.
        letters: the letters of its tagging scheme.
        labelled: whether the last column holds tags.
    """

    blocks: list[Block]
    tabs: bool
    width: int
    letters: str
    labelled: bool


def read_columns(path: str | os.PathLike, bad_rows: BadRows = STRICT, words: Iterable[str] = ()) -> Table:
    """Reads a file.

    Comments are skipped, lines before a sentence's first word such as ``# id 3`` in CoNLL-U and
    ``###MEDLINE:95369245`` in JNLPBA; but not a line with a tag, since # may be a word. Header lines
    (``word pos chunk ner``) are skipped too, or they would be taken for words.

    Args:
        path: the file; ``-`` for standard input.
        bad_rows: its ``encoding`` is that of lines that are not UTF-8. A line that cannot be read makes its block
            broken.
        words: words that the file is known to contain. If one contains a blank, tabs separate the columns; if
            -DOCSTART- is one, as in data from hubs, it does not open a document.
    """
    words = set(words)
    blocks = list(_blocks(path, bad_rows, documents=not any(map(_opens, words))))
    tabs = any(" " in word for word in words) or _by_tabs(blocks)
    for block in blocks:
        if block.lines and _is_header(split(block.lines[0][1], tabs)):
            del block.lines[0]
    lines = [[(line, split(line, tabs)) for _, line in block.lines] for block in blocks]
    columns = [found for block in lines for _, found in block]
    first = columns[0] if columns else ()
    width = len(next((found for block in lines for line, found in block if not _COMMENT.match(line)), first))
    if width > 1 or words:  # a single column holds words, unless the words are known; then it holds tags
        typed = with_types([[found[-1] for _, found in block] for block in lines])
        lines = [
            [(line, [*found[:-1], tag]) for (line, found), tag in zip(block, tags, strict=True)]
            for block, tags in zip(lines, typed, strict=True)
        ]
        columns = [found for block in lines for _, found in block]
    letters = letters_of([found[-1] for _, found in block] for block in lines)
    labelled = width > 1 and any(is_tag(last, letters) for *_, last in columns)

    def is_comment(pair: tuple[str, list[str]]) -> bool:
        line, found = pair
        if not _COMMENT.match(line):
            return False
        if labelled:
            return not is_tag(found[-1], letters)
        return (line.count("\t") + 1 if tabs else len(found)) != width

    for block, pairs in zip(blocks, lines, strict=True):
        kept = list(itertools.dropwhile(is_comment, pairs))
        block.lines = block.lines[len(pairs) - len(kept) :]
        block.columns = [found for _, found in kept]
    return Table([block for block in blocks if block.lines or block.broken], tabs, width, letters, labelled)


def _is_header(columns: Sequence[str]) -> bool:
    """Whether these are names of several columns, that of the words first. A single name may be a word."""
    names = [column.lower() for column in columns]
    return len(names) > 1 and names[0] in _HEADS_OF_WORDS and _HEADS.issuperset(names)
