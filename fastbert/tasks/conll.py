"""CoNLL's column files, and the same from data-set hubs.

One token a line, the tag last (`tagging`), columns separated by blanks or tabs, or by tabs alone where words hold
blanks; an empty line after each sentence, and ``-DOCSTART-`` lines before documents.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ..errors import DataError
from .bad_rows import STRICT, BadRows, called, numbered
from .base import Row
from .conll_words import check_tags, check_words
from .files import read_lines, shorten
from .hub_files import Record, is_hub_file, read_records
from .tagging import UNTYPED, expected, in_scheme_of, is_tag, letters_of, with_types, without_type
from .typed import check_typed

DOCUMENT = "-DOCSTART-"
_BLANKS = re.compile(r"[ \t]+")
_BREAKS = re.compile(r"[\t\r\n]")
_COMMENT = re.compile(r"##?[ \t]|###MEDLINE:")
WORDS, TAGS = ("tokens", "words"), ("ner_tags", "tags", "labels")
"""The columns of data-set hubs."""
_HEADS_OF_WORDS = frozenset(["word", "words", "token", "tokens", "form"])
_HEADS = _HEADS_OF_WORDS.union(
    ["lemma", "pos", "pos_tag", "postag", "upos", "xpos", "chunk", "chunk_tag", "phrase"],
    ["ner", "ner_tag", "ner_tags", "netag", "entity", "iob", "bio", "tag", "tags", "label", "labels"],
)
"""What people write above columns."""


@dataclass(frozen=True)
class Sentence(Row):
    """A row whose texts are words and whose label is their tags, as the file has them.

    Args:
        lines: of the file, a word each.
        document: number of the document, from 0; None where the file has no -DOCSTART- lines.
        opening: the -DOCSTART- line of a document, at its first sentence.
    """

    lines: tuple[str, ...] = ()
    document: int | None = None
    opening: str | None = None


@dataclass
class _Block:
    """Lines of one sentence with their numbers, and the -DOCSTART- line before them; broken, with the reason, where a
    line is missing that is no UTF-8; the columns of the lines, once it is known what parts them."""

    lines: list[tuple[int, str]]
    document: int | None
    opening: str | None
    broken: str | None = None
    columns: list[list[str]] = field(default_factory=list)


def _blocks(path: str | os.PathLike, bad_rows: BadRows, documents: bool = True) -> Iterator[_Block]:
    """The sentences of a file.

    Args:
        bad_rows: what lines are read by; those that cannot be are their block's.
        documents: -DOCSTART- opens a document, where else it is a word.
    """
    block, unread = _Block([], None, None), BadRows(skip=True, encoding=bad_rows.encoding)
    for number, line in read_lines(path, unread):
        _mark_broken(block, unread)
        if not line.strip(" \t\ufeff"):  # WNUT17's dev file ends in a byte-order mark
            whole = bool(block.lines or block.broken)
            if whole:
                yield block
            block = _Block([], block.document, None if whole else block.opening)
        elif documents and _opens(line):
            if block.lines or block.broken:
                yield block
            block = _Block([], 0 if block.document is None else block.document + 1, line)
        else:
            block.lines.append((number, line))
    bad_rows.decoded += unread.decoded
    _mark_broken(block, unread)
    if block.lines or block.broken:
        yield block


def _opens(line: str) -> bool:
    return _BLANKS.split(line.strip(" \t"), maxsplit=1)[0] == DOCUMENT


def _mark_broken(block: _Block, unread: BadRows) -> None:
    """Lines that could not be read since the last one are the block's: one reason is enough for a sentence."""
    if unread.reasons:
        block.broken = block.broken or unread.reasons[0]
        unread.reasons.clear()


def split(line: str, tabs: bool = False) -> list[str]:
    """The columns of a line, of a file that `by_tabs` says of; a no-break space is part of a word."""
    line = line.strip(" \t")
    return [column.strip(" ") for column in line.split("\t")] if tabs and "\t" in line else _BLANKS.split(line)


def by_tabs(blocks: Sequence[_Block]) -> bool:
    """Whether tabs alone part the columns of a file, so that words may hold blanks: most lines with a tab have no other
    blank. Where a column was pasted with a tab to those that blanks part, all have."""
    tabbed = [line for block in blocks for _, line in block.lines if "\t" in line]
    return bool(tabbed) and 2 * sum(split(line) == split(line, True) for line in tabbed) >= len(tabbed)


@dataclass(frozen=True)
class _Table:
    """The sentences of a file, without comments; whether tabs alone part its columns; how many it has; the letters of
    its tags; and whether the last column holds some."""

    blocks: list[_Block]
    tabs: bool
    width: int
    letters: str
    labelled: bool


def _table(path: str | os.PathLike, bad_rows: BadRows = STRICT, words: Iterable[str] = ()) -> _Table:
    """Reads a file.

    Args:
        bad_rows: as of `_blocks`.
        words: that it is known to have. Blanks within one say that tabs part the columns, and where a data-set hub's
            -DOCSTART- is one, it opens no document.

    Comments are lines such as ``# id 3`` before a sentence's first word, as CoNLL-U and its kin have them, and
    JNLPBA's ``###MEDLINE:95369245``; a line that has a tag is none, for # may be a word. A line of names of columns
    (``word pos chunk ner``) is left out like one: it would be tagged as if it were words.
    """
    words = set(words)
    blocks = list(_blocks(path, bad_rows, documents=not any(map(_opens, words))))
    tabs = any(" " in word for word in words) or by_tabs(blocks)
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
    return _Table([block for block in blocks if block.lines or block.broken], tabs, width, letters, labelled)


def _is_header(columns: Sequence[str]) -> bool:
    """Whether these are names of several columns, the words' first; of one alone it may be a word."""
    names = [column.lower() for column in columns]
    return len(names) > 1 and names[0] in _HEADS_OF_WORDS and _HEADS.issuperset(names)


def read_sentences(path: str | os.PathLike, bad_rows: BadRows = STRICT, ignore_tags: bool = False) -> list[Sentence]:
    """The sentences of a file. They have labels where the last of several columns holds tags.

    A sentence with a line of another number of columns is a bad row; so is one with something else for a tag, which
    with ``ignore_tags`` has no labels.
    """
    if is_hub_file(path):
        return _read_records(path, bad_rows, ignore_tags)
    table = _table(path, bad_rows)
    if not table.blocks:
        raise DataError(f"{called(path)}: expected sentences of one word a line, got none")
    lines, columns = [list(part) for part in zip(*((b.lines, b.columns) for b in table.blocks), strict=True)]
    check_typed(path, lines, columns, table.labelled, WORDS)
    check_words(called(path), lines, columns)
    if not ignore_tags:
        check_tags(called(path), lines, columns)
    rows, opening = [], None
    for index, block in enumerate(table.blocks):
        # The line that opens a document whose first sentence is left out goes before the next one.
        opening = block.opening or opening
        if block.broken:
            bad_rows.refuse(block.broken)
            continue
        try:
            rows.append(_sentence(str(index), block, opening, table, ignore_tags))
            opening = None
        except ValueError as error:
            bad_rows.refuse(f"{called(path)}, {error}")
    if not rows:
        raise bad_rows.none_left(path, "sentences")
    return rows


def _read_records(path: str | os.PathLike, bad_rows: BadRows, ignore_tags: bool) -> list[Sentence]:
    """Sentences as data-set hubs have them: lists of words and of tags, and maybe the document that they are of."""
    found, documents = [], 0
    before = None
    records = list(numbered(read_records(path, bad_rows), bad_rows))
    tagged = {index: named for index, record in records if (named := _named_tags(record)) is not None}
    tagged = dict(zip(tagged, with_types(list(tagged.values())), strict=True))
    letters = letters_of([tag for tag in tags if isinstance(tag, str)] for tags in tagged.values())
    for index, record in records:
        document = record.values.get("document_id")
        documents, before = documents + (index > 0 and document != before), document
        try:
            words, tags = _words_and_tags(record, tagged.get(index), letters, ignore_tags)
        except ValueError as error:
            bad_rows.refuse(f"{record.where}: {error}")
            continue
        found.append((str(index), words, tags, None if document is None else documents))
    if not found:
        raise bad_rows.none_left(path, "sentences")
    separator = _separator_of(words for _, words, *_ in found)
    return [Sentence(name, words, tags, _lines(words, tags, separator), of) for name, words, tags, of in found]


def _words_and_tags(
    record: Record, named: list | None, letters: str, ignore_tags: bool
) -> tuple[tuple[str, ...], tuple[str, ...] | None]:
    column = next((name for name in WORDS if name in record.values), None)
    words = record.values.get(column)
    if not isinstance(words, list) or not words:
        raise ValueError(f"expected a list of words in the column {' or '.join(WORDS)}, got {shorten(repr(words))}")
    for word in words:
        if not isinstance(word, str) or not word.strip(" ") or _BREAKS.search(word):
            raise ValueError(f"expected words without tabs and line ends, got {shorten(repr(word))}")
    words = [word.strip(" ") for word in words]
    try:
        return tuple(words), _tags_of(record, named, letters, len(words))
    except ValueError:
        if not ignore_tags:
            raise
        return tuple(words), None


def _tag_column(record: Record) -> str | None:
    return next((name for name in TAGS if name in record.values), None)


def _named_tags(record: Record) -> list | None:
    """The tags of a record, numbers by their names, which data sets order as they like; None without a list of tags."""
    column = _tag_column(record)
    tags, names = record.values.get(column), record.names.get(column, ())
    if not isinstance(tags, list):
        return None
    return [names[tag] if isinstance(tag, int) and 0 <= tag < len(names) else tag for tag in tags]


def _tags_of(record: Record, named: list | None, letters: str, num_words: int) -> tuple[str, ...] | None:
    column = _tag_column(record)
    if column is None:
        return None
    tags, names = record.values[column], record.names.get(column, ())
    if named is None or len(named) != num_words:
        raise ValueError(f"expected a tag for each of {num_words} words, got {shorten(repr(tags))}")
    strange = next((tag for tag in named if not isinstance(tag, str) or not is_tag(tag, letters)), None)
    if strange is not None:
        known = f" (the file names {shorten(', '.join(names))})" if names else ""
        raise ValueError(f"expected tags {expected(letters)}, or numbers that the file names, got {strange!r}{known}")
    return tuple(named)


def _sentence(name: str, block: _Block, opening: str | None, table: _Table, ignore_tags: bool) -> Sentence:
    words, tags = [], []
    for (number, line), columns in zip(block.lines, block.columns, strict=True):
        if len(columns) != table.width:
            raise ValueError(f"line {number}: expected {table.width} columns, got {len(columns)}: {shorten(line)!r}")
        if table.labelled and not is_tag(columns[-1], table.letters) and not ignore_tags:
            tag = without_type(columns[-1])
            raise ValueError(f"line {number}: expected the tag {expected(table.letters)}, got {tag!r}")
        words.append(columns[0])
        tags.append(columns[-1])
    lines = tuple(line for _, line in block.lines)
    labelled = table.labelled and all(is_tag(tag, table.letters) for tag in tags)
    return Sentence(name, tuple(words), tuple(tags) if labelled else None, lines, block.document, opening)


def _predicted(blocks: list[_Block], sentences: Sequence[Row], left_out: int, tabs: bool) -> list[_Block]:
    """Those of the blocks that are of these sentences, beside which a file of predictions may have all that were left
    out, or some: what is none for a tag is no reason not to predict a sentence."""
    if len(blocks) == len(sentences) + left_out:
        return [blocks[int(sentence.id)] for sentence in sentences]
    rest = iter(blocks)

    def words(block: _Block) -> tuple[str, ...]:
        return tuple(split(line, tabs)[0] for _, line in block.lines)

    found = [next((block for block in rest if words(block) == sentence.texts), None) for sentence in sentences]
    return blocks if None in found else found


def read_tags(path: str | os.PathLike, sentences: Sequence[Row], bad_rows: BadRows = STRICT) -> list[tuple[str, ...]]:
    """Predicted tags, the last column of a file with the same sentences (as conlleval takes it, or tags alone). Where
    bad rows were left out of the sentences, the file may still have them.

    Raises:
        DataError: other sentences or words, or something else for a tag.
    """
    table = _table(path, words=itertools.chain.from_iterable(sentence.texts for sentence in sentences))
    blocks, tabs = table.blocks, table.tabs
    for block in blocks:
        if block.broken:
            raise DataError(block.broken)
    if bad_rows.reasons:
        blocks = _predicted(blocks, sentences, len(bad_rows.reasons), tabs)
    if len(blocks) != len(sentences):
        raise DataError(f"{path}: expected {len(sentences)} sentences, got {len(blocks)}")
    predictions = []
    for sentence, block in zip(sentences, blocks, strict=True):
        if len(block.lines) != len(sentence.texts):
            raise DataError(
                f"{path}, line {block.lines[0][0]}: expected a sentence of {len(sentence.texts)} words "
                f"({shorten(' '.join(sentence.texts))!r}), got {len(block.lines)}"
            )
        tags = []
        for word, (number, _), columns in zip(sentence.texts, block.lines, block.columns, strict=True):
            if len(columns) > 1 and columns[0] != word:
                raise DataError(f"{path}, line {number}: expected the word {word!r}, got {columns[0]!r}")
            if not is_tag(columns[-1], table.letters):
                tags = expected(table.letters)
                raise DataError(f"{path}, line {number}: expected the tag {tags}, got {without_type(columns[-1])!r}")
            tags.append(columns[-1])
        predictions.append(tuple(tags))
    return predictions


def _as_sentence(row: Row, separator: str) -> Sentence:
    """A row that came from no file gets the columns word and tag."""
    if isinstance(row, Sentence):
        return row
    return Sentence(row.id, row.texts, row.label, _lines(row.texts, row.label, separator))


def _separator_of(sentences: Iterable[Sequence[str]]) -> str:
    """What parts the columns of a file of these words: tabs where one holds blanks, in all lines, since a reader
    decides for a whole file."""
    return "\t" if any(" " in word for words in sentences for word in words) else " "


def _lines(words: Sequence[str], tags: Sequence[str] | None, separator: str) -> tuple[str, ...]:
    """Lines of a sentence that no file of columns has."""
    return tuple(words) if tags is None else tuple(map(separator.join, zip(words, tags, strict=True)))


def tagged_lines(sentences: Sequence[Row], predictions: Sequence[Sequence[str]]) -> Iterator[str]:
    """The lines of the file that was read, each with its predicted tag as one more column: conlleval's input.

    The tags follow the scheme of the file's own, IOB2 where it has none.
    """
    predictions = in_scheme_of(sentences, predictions)
    separator = _separator_of(sentence.texts for sentence in sentences)
    rows = [_as_sentence(row, separator) for row in sentences]
    if not any(line.endswith(f"-{UNTYPED}") for row in rows for line in row.lines):
        predictions = [list(map(without_type, tags)) for tags in predictions]
    for sentence, tags in zip(rows, predictions, strict=True):
        if sentence.opening is not None:
            yield f"{sentence.opening}{_separator(sentence.opening)}O"
            yield ""
        yield from _with_tags(sentence, tags, separator)
        yield ""


def _with_tags(sentence: Sentence, tags: Sequence[str], separator: str) -> Iterable[str]:
    if sentence.lines == sentence.texts:  # no columns, so that blanks are the words' own
        return _lines(sentence.texts, tags, separator)
    return [line.rstrip(" \t") + _separator(line) + tag for line, tag in zip(sentence.lines, tags, strict=True)]


def _separator(line: str) -> str:
    return "\t" if "\t" in line else " "
