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
from dataclasses import dataclass, field, replace

from .bad_rows import STRICT, BadRows
from .files import read_lines
from .tagging import is_tag, letters_of, with_types

DOCUMENT = "-DOCSTART-"
"""The word of a line before each document."""
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
    return _BLANKS.split(line.strip(" \t"), maxsplit=1)[0] == DOCUMENT


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
        tabs: whether only tabs separate columns (`ColumnFile`).
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
class ColumnFile:
    """A file of columns, as it was read.

    Args:
        blocks: its sentences, without comments.
        tabs: whether only tabs separate the columns.
        width: the number of columns.
        letters: the letters of its tagging scheme.
        labelled: whether the last column holds tags.
        tabbed: whether lines of words have tabs.
        opened: whether all its sentences open with a line like a comment.
    """

    blocks: list[Block]
    tabs: bool
    width: int
    letters: str
    labelled: bool
    tabbed: bool = False
    opened: bool = False

    def is_comment(self, line: str, columns: Sequence[str], first: bool) -> bool:
        """Whether a line at the beginning of a sentence, its ``first`` one or one after comments, is a comment; # may
        be a word too, if it has a tag."""
        if not _COMMENT.match(line):
            return False
        if self.labelled:
            return not is_tag(columns[-1], self.letters)
        # As many columns as a word has may be chance: MultiCoNER's "# id ID<TAB>domain=en" beside "word _ _ _".
        width = line.count("\t") + 1 if self.tabs else len(columns)
        return width != self.width or (first and self.opened) or (self.width > 1 and ("\t" in line) != self.tabbed)


def read_columns(path: str | os.PathLike, bad_rows: BadRows = STRICT, words: Iterable[str] = ()) -> ColumnFile:
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
        block.columns = [split(line, tabs) for _, line in block.lines]
    width = _width(blocks)
    if width > 1 or words:  # a single column holds words, unless the words are known; then it holds tags
        _add_types(blocks)
    letters = letters_of(map(_lasts, blocks))
    labelled = width > 1 and any(is_tag(last, letters) for block in blocks for last in _lasts(block))
    lines = [line for block in blocks for _, line in block.lines]
    tabbed = any("\t" in line and not _COMMENT.match(line) for line in lines)
    opened = len(blocks) > 1 and all(block.lines and _COMMENT.match(block.lines[0][1]) for block in blocks)
    file = ColumnFile(blocks, tabs, width, letters, labelled, tabbed, bool(opened))
    for block in blocks:
        rows = zip(itertools.count(), block.lines, block.columns, strict=False)
        comments = sum(1 for _ in itertools.takewhile(lambda row: file.is_comment(row[1][1], row[2], not row[0]), rows))
        del block.lines[:comments], block.columns[:comments]
    return replace(file, blocks=[block for block in blocks if block.lines or block.broken])


def _width(blocks: Sequence[Block]) -> int:
    """The number of columns of the first line that is no comment; if all are, of the first line."""
    lines = [(line, columns) for block in blocks for (_, line), columns in zip(block.lines, block.columns, strict=True)]
    first = lines[0][1] if lines else ()
    return len(next((columns for line, columns in lines if not _COMMENT.match(line)), first))


def _lasts(block: Block) -> list[str]:
    """The last column of a block."""
    return [columns[-1] for columns in block.columns]


def _add_types(blocks: Sequence[Block]) -> None:
    """Adds a type to the tags in the last column if none of them has one (`with_types`)."""
    for block, tags in zip(blocks, with_types([_lasts(block) for block in blocks]), strict=True):
        block.columns = [[*columns[:-1], tag] for columns, tag in zip(block.columns, tags, strict=True)]


def _is_header(columns: Sequence[str]) -> bool:
    """Whether these are names of several columns, that of the words first. A single name may be a word."""
    names = [column.lower() for column in columns]
    return len(names) > 1 and names[0] in _HEADS_OF_WORDS and _HEADS.issuperset(names)
