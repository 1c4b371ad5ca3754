"""Sentences of tagged words from CoNLL's column files (`conll_columns`) and from data-set hubs.

A file of columns has one word per line, with its tag in the last column (`tagging`).
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from ..errors import DataError
from ..wording import counted
from . import beside
from .bad_rows import STRICT, BadRows, called, numbered
from .base import Row
from .conll_columns import Block, ColumnFile, read_columns, split
from .conll_or_sentences import HINT, refuse_lone_lines, refuse_running_text
from .conll_words import check_tags, check_words, refuse_json, say_if_joined, say_if_tagged_twice
from .files import load_json, shorten
from .hub_files import Record, is_hub_file, read_records
from .tagging import UNTYPED, expected, in_scheme_of, is_tag, letters_of, with_types, without_type

_BREAKS = re.compile(r"[\t\r\n]")
_NO_WORD, _NO_WORDS = re.compile(r" *\t"), r"sed '/^ *\t/d' FILE"
_MARK = "\ufeff"
WORDS, TAGS = ("tokens", "words"), ("ner_tags", "tags", "labels")
"""The names of the columns on data-set hubs."""
_NUMBERED = '{"O": 0, "B-ORG": 1, ...}'
"""What label.json has, for messages."""


@dataclass(frozen=True)
class Sentence(Row):
    """A row whose texts are words, and whose label is their tags as in the file.

    Args:
        lines: the lines of the file, one per word.
        opening: for the first sentence of a document, the -DOCSTART- line; otherwise None.
        source: the number of the document, from 0; None if the file does not tell documents apart. Unlike in `Row`, it
            counts in comparisons, since with document_context the model reads the neighbouring sentences too.
    """

    lines: tuple[str, ...] = ()
    opening: str | None = None
    source: Hashable = field(default=None, kw_only=True)


def read_sentences(path: str | os.PathLike, bad_rows: BadRows = STRICT, ignore_tags: bool = False) -> list[Sentence]:
    """The sentences of a file. They have labels if there are several columns and the last one holds tags.

    Args:
        path: the file; ``-`` for standard input.
        bad_rows: what to do with a sentence that has a line with another number of columns, or an invalid tag.
        ignore_tags: whether a sentence with an invalid tag counts as one without labels; otherwise it is a bad row.

    Raises:
        DataError: there is no usable sentence, or a bad one is not to be skipped.
    """
    if is_hub_file(path):
        return _read_records(path, bad_rows, ignore_tags)
    file = read_columns(path, bad_rows)
    if not file.blocks:
        raise DataError(f"{called(path)}: expected sentences of one word a line, got none")
    lines, columns = [list(part) for part in zip(*((b.lines, b.columns) for b in file.blocks), strict=True)]
    name = called(path)
    refuse_json(name, lines, WORDS)
    if not file.labelled:
        refuse_lone_lines(name, lines, columns, HINT if ignore_tags else "")
    check_words(name, lines, columns, bad_rows.encoding)
    if ignore_tags:
        refuse_running_text(name, lines, columns)
    else:
        check_tags(name, lines, columns)
        say_if_joined(name, columns)
        say_if_tagged_twice(name, lines, columns, file.width)
    rows, opening = [], None
    for index, block in enumerate(file.blocks):
        # If a document's first sentence is skipped, its -DOCSTART- line goes to the next one.
        opening = block.opening or opening
        if block.broken:
            bad_rows.refuse(block.broken)
            continue
        try:
            rows.append(_sentence(str(index), block, opening, file, ignore_tags))
            opening = None
        except ValueError as error:
            bad_rows.refuse(f"{name}, {error}")
    if not rows:
        raise bad_rows.none_left(path, "sentences")
    return rows


def _read_records(path: str | os.PathLike, bad_rows: BadRows, ignore_tags: bool) -> list[Sentence]:
    """Sentences in the form of data-set hubs: lists of words and of tags, and possibly a document id."""
    found, documents = [], 0
    before = None
    # One without words is as the blank lines at the end of the file that it was made from.
    records = list(numbered((r for r in read_records(path, bad_rows) if not _is_empty(r)), bad_rows))
    records = _named_beside(path, records, ignore_tags)
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
    return [Sentence(name, words, tags, _lines(words, tags, separator), source=of) for name, words, tags, of in found]


def _named_beside(
    path: str | os.PathLike, records: list[tuple[int, Record]], ignore_tags: bool
) -> list[tuple[int, Record]]:
    """Records whose tags are numbers get the names of these from label.json beside the file, if it is there: tner
    publishes its sets so.

    Raises:
        DataError: label.json is needed and has another form.
    """
    columns = {_tag_column(record) for _, record in records if _has_numbers(record)}
    file = beside.tag_names(path)
    if not columns or not file.is_file():
        return records
    try:
        value = load_json(file)[0]
        if not isinstance(value, dict) or sorted(map(repr, value.values())) != sorted(map(repr, range(len(value)))):
            raise DataError(f"{file}: expected the numbers of tags from 0 on, as {_NUMBERED}, got {value!r:.60}")
    except DataError:
        if ignore_tags:
            return records
        raise
    names = dict.fromkeys(columns, tuple(sorted(value, key=value.get)))
    return [(index, replace(record, names={**names, **record.names})) for index, record in records]


def _has_numbers(record: Record) -> bool:
    """Whether the tags of a record are numbers without names."""
    column = _tag_column(record)
    tags = record.values.get(column)
    return column not in record.names and isinstance(tags, list) and any(isinstance(tag, int) for tag in tags)


def _is_empty(record: Record) -> bool:
    """Whether a record has a list of words and no word in it, nor a tag."""
    words = [record.values[name] for name in WORDS if name in record.values]
    return words[:1] == [[]] and not record.values.get(_tag_column(record))


def _words_and_tags(
    record: Record, named: list | None, letters: str, ignore_tags: bool
) -> tuple[tuple[str, ...], tuple[str, ...] | None]:
    column = next((name for name in WORDS if name in record.values), None)
    words = record.values.get(column)
    if column is None:
        got = shorten(", ".join(record.values)) or "nothing"
        hint = "; --column names one of plain sentences" if ignore_tags else ""
        raise ValueError(f"expected a list of words in the column {' or '.join(WORDS)}, got the columns {got}{hint}")
    if not isinstance(words, list) or not words:
        raise ValueError(f"expected a list of words in the column {' or '.join(WORDS)}, got {shorten(repr(words))}")
    for word in words:
        if isinstance(word, str) and not word.strip(" "):  # in KLUE words are characters, including blanks
            raise ValueError(f"expected words with other characters than blanks, got {word!r:.60}")
        if not isinstance(word, str) or _BREAKS.search(word):
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
    """The tags of a record, with numbers replaced by the names that the file gives; None without a list of tags."""
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
    strange = [tag for tag in named if not isinstance(tag, str) or not is_tag(tag, letters)]  # None, for a null tag
    if strange:
        known = f" (the file names {shorten(', '.join(names))})" if names else ""
        if not names and isinstance(strange[0], int):
            known = f": datasets' to_parquet keeps the names, to_json does not; or write label.json beside, {_NUMBERED}"
        raise ValueError(
            f"expected tags {expected(letters)}, or numbers that the file names, got {strange[0]!r}{known}"
        )
    return tuple(named)


def _sentence(name: str, block: Block, opening: str | None, file: ColumnFile, ignore_tags: bool) -> Sentence:
    words, tags = [], []
    for (number, line), columns in zip(block.lines, block.columns, strict=True):
        if len(columns) != file.width:
            width = counted(file.width, "column")
            # KLUE tags characters, those between words too.
            hint = f"; {_NO_WORDS} leaves out lines without a word" if _NO_WORD.match(line) else ""
            hint = hint or (HINT if ignore_tags and not file.labelled else "")
            raise ValueError(f"line {number}: expected {width}, got {len(columns)}: {shorten(line)!r}{hint}")
        if file.labelled and not is_tag(columns[-1], file.letters) and not ignore_tags:
            tag = without_type(columns[-1])
            raise ValueError(f"line {number}: expected the tag {expected(file.letters)}, got {tag!r}")
        words.append(columns[0])
        tags.append(columns[-1])
    lines = tuple(line for _, line in block.lines)
    labelled = file.labelled and all(is_tag(tag, file.letters) for tag in tags)
    label = tuple(tags) if labelled else None
    return Sentence(name, tuple(words), label, lines, opening, source=block.document)


def _predicted(blocks: list[Block], sentences: Sequence[Row], left_out: int, tabs: bool) -> list[Block]:
    """The blocks of a file of predictions that belong to these sentences. The file may also have all or some of the
    sentences that were skipped as bad rows, since an invalid tag does not prevent predictions for a sentence."""
    if len(blocks) == len(sentences) + left_out:
        return [blocks[int(sentence.id)] for sentence in sentences]
    rest = iter(blocks)

    def words(block: Block) -> tuple[str, ...]:
        return tuple(split(line, tabs)[0] for _, line in block.lines)

    found = [next((block for block in rest if words(block) == sentence.texts), None) for sentence in sentences]
    return blocks if None in found else found


def read_tags(path: str | os.PathLike, sentences: Sequence[Row], bad_rows: BadRows = STRICT) -> list[tuple[str, ...]]:
    """Predicted tags: the last column of a file with the same sentences (conlleval's input, or only tags). It may
    also have the sentences that were skipped as bad rows.

    Args:
        path: the file of predictions.
        sentences: the rows that were predicted.
        bad_rows: has the reasons of the skipped ones.

    Returns:
        the tags of each sentence.

    Raises:
        DataError: the file has other sentences or words, or an invalid tag.
    """
    file = read_columns(path, words=itertools.chain.from_iterable(sentence.texts for sentence in sentences))
    blocks, tabs = file.blocks, file.tabs
    # Of the tags of a poor tagger few entities are complete, by which the scheme is recognised.
    letters = (file.letters, letters_of(sentence.label for sentence in sentences if sentence.label is not None))
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
            if len(columns) > 1 and columns[0].lstrip(_MARK) != word.lstrip(_MARK):  # a file does not begin with it
                raise DataError(f"{path}, line {number}: expected the word {word!r}, got {columns[0]!r}")
            if not any(is_tag(columns[-1], known) for known in letters):
                tags = expected(letters[-1])
                raise DataError(f"{path}, line {number}: expected the tag {tags}, got {without_type(columns[-1])!r}")
            tags.append(columns[-1])
        predictions.append(tuple(tags))
    return predictions


def _as_sentence(row: Row, separator: str) -> Sentence:
    """The row as a `Sentence`; a row that was not read from a file gets lines with the columns word and tag."""
    if isinstance(row, Sentence):
        return row
    return Sentence(row.id, row.texts, row.label, _lines(row.texts, row.label, separator))


def _separator_of(sentences: Iterable[Sequence[str]]) -> str:
    """The separator of columns for a file of these words: a tab if any word contains a blank, in all lines, since
    readers decide for a whole file."""
    return "\t" if any(" " in word for words in sentences for word in words) else " "


def _lines(words: Sequence[str], tags: Sequence[str] | None, separator: str) -> tuple[str, ...]:
    """Lines for a sentence that was not read from a file of columns."""
    return tuple(words) if tags is None else tuple(map(separator.join, zip(words, tags, strict=True)))


def tagged_lines(sentences: Sequence[Row], predictions: Sequence[Sequence[str]]) -> Iterator[str]:
    """The lines of the file that was read, each with its predicted tag as an additional column, which is conlleval's
    input.

    The predicted tags are in the scheme of the rows' own tags (`tagging.in_scheme_of`).
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
    if sentence.lines == sentence.texts:  # a single column, in which blanks belong to the words
        return _lines(sentence.texts, tags, separator)
    return [line.rstrip(" \t") + _separator(line) + tag for line, tag in zip(sentence.lines, tags, strict=True)]


def _separator(line: str) -> str:
    return "\t" if "\t" in line else " "
