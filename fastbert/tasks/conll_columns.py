"""Lines of CoNLL's column files: sentences, columns, comments, names of columns.

Columns are separated by blanks or tabs, or by tabs alone where words hold blanks; an empty line is after each sentence,
and ``-DOCSTART-`` lines are before documents.
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
"""What people write above columns."""


@dataclass
class Block:
    """Lines of one sentence with their numbers, and the -DOCSTART- line before them; broken, with the reason, where a
    line is missing that is no UTF-8; the columns of the lines, once it is known what parts them."""

    lines: list[tuple[int, str]]
    document: int | None
    opening: str | None
    broken: str | None = None
    columns: list[list[str]] = field(default_factory=list)


def _blocks(path: str | os.PathLike, bad_rows: BadRows, documents: bool = True) -> Iterator[Block]:
    """The sentences of a file.

    Args:
        bad_rows: what lines are read by; those that cannot be are their block's.
        documents: -DOCSTART- opens a document, where else it is a word.
    """
    block, unread = Block([], None, None), BadRows(skip=True, encoding=bad_rows.encoding)
    for number, line in read_lines(path, unread):
        _mark_broken(block, unread)
        if not line.strip(" \t\ufeff"):  # WNUT17's dev file ends in a byte-order mark
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
    """Lines that could not be read since the last one are the block's: one reason is enough for a sentence."""
    if unread.reasons:
        block.broken = block.broken or unread.reasons[0]
        unread.reasons.clear()


def split(line: str, tabs: bool = False) -> list[str]:
    """The columns of a line, of a `Table` with these ``tabs``; a no-break space is part of a word. Words and tags that
    come again are the same objects: a file is held whole, and has few of them."""
    line = line.strip(" \t")
    columns = line.split("\t") if tabs and "\t" in line else _BLANKS.split(line)
    return [sys.intern(column.strip(" ")) for column in columns]


def _by_tabs(blocks: Sequence[Block]) -> bool:
    """Whether tabs alone part the columns of a file, so that words may hold blanks: most lines with a tab have no other
    blank. Where a column was pasted with a tab to those that blanks part, all have."""
    tabbed = [line for block in blocks for _, line in block.lines if "\t" in line]
    return bool(tabbed) and 2 * sum(split(line) == split(line, True) for line in tabbed) >= len(tabbed)


@dataclass(frozen=True)
class Table:
    """The sentences of a file, without comments; whether tabs alone part its columns; how many it has; the letters of
    its tags; and whether the last column holds some."""

    blocks: list[Block]
    tabs: bool
    width: int
    letters: str
    labelled: bool


def read_columns(path: str | os.PathLike, bad_rows: BadRows = STRICT, words: Iterable[str] = ()) -> Table:
    """Reads a file.

    Args:
        bad_rows: what lines are read by; those that cannot be are their block's.
        words: that it is known to have. Blanks within one say that tabs part the columns, and where a data-set hub's
            -DOCSTART- is one, it opens no document.

    Comments are lines such as ``# id 3`` before a sentence's first word, as CoNLL-U and its kin have them, and
    JNLPBA's ``###MEDLINE:95369245``; a line that has a tag is none, for # may be a word. A line of names of columns
    (``word pos chunk ner``) is left out like one: it would be tagged as if it were words.
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
    if width > 1 or words:  # of one column alone, which are words if they are not known
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
    """Whether these are names of several columns, the words' first; of one alone it may be a word."""
    names = [column.lower() for column in columns]
    return len(names) > 1 and names[0] in _HEADS_OF_WORDS and _HEADS.issuperset(names)
