"""Recognising files of tagged words whose lines do not have a word first and its tag last: a model would silently learn
from what is there instead."""

from __future__ import annotations

import functools
import itertools
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import DataError
from .files import shorten
from .tagging import LETTERS, is_tag
from .typed import has_form, json_or_none

_LANGUAGE = re.compile(r"[a-z][a-z-]{1,11}:(?!//)")
_WITH_COMMAS = re.compile(r".*,(O|[BI]-[^,]+)")
_PART = re.compile(r"\d+[-.]\d+")
_PLACE = re.compile(r"(\d+)(?:[-.:](\d+))?")
_SEGMENTED = re.compile(r".[0-9]+")
_JOINED = re.compile(r"[BIESLU]-[^|]+(\|[BIESLU]-[^|]+)+")
_TYPE = re.compile(r"(?![A-Za-z]([\W_]|$))\w[\w/&.-]+(?<![\W_][A-Za-z])")
# Parts of speech become entities of one word, whose F1 is then the share of words that are tagged correctly.
_FROM_CONLL_U = """awk -F '\\t' '/^\\r?$/ {print ""} NF == 10 && $1 !~ /[-.]/ {print $2 "\\tB-" $4}' FILE"""
_FROM_COMMAS = (
    """python3 -X utf8 -c "import csv; [print('\\n' * (n > 1 and r[0] != '') + r[1] + '\\t' + r[-1]) """
    """for n, r in enumerate(csv.reader(open('FILE'{encoding}))) if n]\""""
)
_FROM_2012 = (
    """awk '/^#/ {next} NF < 11 {print ""; tag = ""; next} """
    """$11 ~ /[(]/ {tag = $11; gsub(/[(*)]/, "", tag); begin = "B-"} """
    """{print $4, (tag == "" ? "O" : begin tag); begin = "I-"} $11 ~ /[)]/ {tag = ""}' FILE"""
)
_FROM_IDS = """awk -F '\\t' 'NF < 2 {next} $1 != id {if (id != "") print ""; id = $1} {print $2 "\\t" $NF}' FILE"""

_log = logging.getLogger("fastbert")

Lines = Sequence[Sequence[tuple[int, str]]]
Columns = Sequence[Sequence[Sequence[str]]]


def refuse_json(path: str, lines: Lines, keys: Sequence[str]) -> None:
    """Raises DataError for JSON where one word per line is expected: its lines would be tagged as if they were words.

    Args:
        path, lines: those of `check_words`.
        keys: the keys that a JSON object may have for its words.
    """
    written = list(itertools.chain.from_iterable(lines))
    if not written:
        return
    number, first = written[0]
    if first.lstrip().startswith("["):
        # The first line of a pretty-printed list is only a bracket, which may be a word; so may a reference like [1].
        found = (json_or_none(first), json_or_none("\n".join(text for _, text in written)))
        is_json = any(isinstance(list_, list) and list_ and isinstance(list_[0], (str, list, dict)) for list_ in found)
    else:
        is_json = has_form(json_or_none(first), [[key] for key in keys])
    if is_json:
        raise DataError(
            f"{path}, line {number}: expected a word a line, got JSON, which is read from a file called .jsonl: "
            f"{shorten(first)!r}"
        )


@dataclass(frozen=True)
class _Words:
    """The lines of a file of tagged words, in the forms that the checks below look at.

    Args:
        columns: the columns of every line, by sentence.
        texts: the text of every line.
        fields: the columns of the same lines.
        encoding: that of the file where it is not UTF-8, if it is known.
    """

    columns: Columns
    texts: Sequence[str]
    fields: Sequence[Sequence[str]]
    encoding: str | None = None

    @property
    def first(self) -> str:
        """The first line."""
        return self.texts[0]

    @property
    def width(self) -> int:
        """The number of columns of the first line."""
        return len(self.fields[0])

    @functools.cached_property
    def words(self) -> list[str]:
        """The first column, which is to have the words."""
        return [of_line[0] for of_line in self.fields]

    @functools.cached_property
    def may_be_behind(self) -> bool:
        """Whether the words may be in a later column. Of two columns the first may be words that are numbers, if the
        second has tags; GermEval's test file has none."""
        if self.width != 2:
            return self.width > 2
        return 2 * sum(is_any_tag(last) for *_, last in self.fields) < len(self.fields)


def check_words(path: str, lines: Lines, columns: Columns, encoding: str | None = None) -> None:
    """Raises DataError if the first column does not hold the words; the message has a command that converts the file.

    Args:
        path: the file's name, for messages.
        lines: number and text of every line, by sentence.
        columns: the columns of the same lines.
        encoding: that of lines that are not UTF-8, if it is known.
    """
    written = list(itertools.chain.from_iterable(lines))
    if not written:
        return
    found = _Words(columns, [text for _, text in written], list(itertools.chain.from_iterable(columns)), encoding)
    for mistake in _MISTAKES:
        said = mistake(found)
        if said is not None:
            raise DataError(f"{path}, line {written[0][0]}: expected {said}")


def _of_2012(found: _Words) -> str | None:
    if not found.first.startswith("#begin document"):
        return None
    return (
        "a word a line with its tag last, got a document of CoNLL-2012 (OntoNotes), whose words are in the fourth "
        f"column and whose entities are in brackets in the eleventh; take these ({_FROM_2012} does)"
    )


def _with_commas(found: _Words) -> str | None:
    if 2 * sum("," in text and _WITH_COMMAS.fullmatch(text) is not None for text in found.texts) <= len(found.texts):
        return None
    of_kaggle = found.first.startswith("Sentence #,")  # a corpus with a number in each sentence's first line
    encoding = f", encoding='{found.encoding}'" if found.encoding else ""
    other = "" if encoding else "; open('FILE', encoding='latin-1') where it is not UTF-8"
    hint = f"; take words and tags ({_FROM_COMMAS.replace('{encoding}', encoding)} does{other})" if of_kaggle else ""
    return f"columns separated by blanks or tabs, got commas: {shorten(found.first)!r}{hint}"


def _numbers_of_words(found: _Words) -> str | None:
    if not found.may_be_behind or not _numbered(found.columns):
        return None
    if all(text.count("\t") == 9 for text in found.texts):
        return (
            "the word in the first column and its tag in the last, got the ten columns of CoNLL-U; take words and "
            f"parts of speech ({_FROM_CONLL_U} does; $5 in place of $4 has the tags of the language)"
        )
    # There may be columns after the tags: GermEval's tags of nested entities, Universal NER's annotators.
    tagged = (
        at
        for at in range(2, found.width)
        if all(len(of_line) > at and is_any_tag(of_line[at]) for of_line in found.fields)
    )
    tags = next(tagged, found.width - 1)
    if tags < found.width - 1:
        cut = f"cut -f 2,{tags + 1} keeps words and entities"
    else:
        cut = "cut -f 2- does" if found.width > 2 else "cut -f 2 does"
    return (
        "the word in the first column, got the numbers of words in every sentence; leave that column out "
        f"(grep -v '^#' FILE | {cut})"
    )


def _names_of_sentences(found: _Words) -> str | None:
    again = sum(word == before for before, word in itertools.pairwise(found.words))
    if not found.may_be_behind or again <= 2 or 2 * again < len(found.words):
        return None
    return (
        "the word in the first column, got the same in most lines as in the line before, as numbers of sentences or "
        "names of documents are; keep words and tags alone, with an empty line after each sentence "
        f"({_FROM_IDS} does, of three columns between tabs)"
    )


def _tags_first(found: _Words) -> str | None:
    tags = found.width > 1 and all(map(is_any_tag, found.words)) and any(word != "O" for word in found.words)
    if not tags or all(is_any_tag(last) for *_, last in found.fields):
        return None
    return (
        "the word in the first column and its tag in the last, got tags in the first; "
        "swap the columns (awk 'NF {print $2, $1; next} {print}' does if there are two)"
    )


def _places_of_characters(found: _Words) -> str | None:
    if found.width < 2 or not _segmented(found.columns):
        return None
    return (
        "a word, got characters with their places in words, as in Weibo's files; leave the places out "
        r"(sed -E 's/^([^0-9 \t]+|[0-9])[0-9]+([ \t])/\1\2/' does)"
    )


def _languages(found: _Words) -> str | None:
    language = _LANGUAGE.match(found.words[0])
    if language is None or len(found.words) < 2 or not all(word.startswith(language[0]) for word in found.words):
        return None
    return (
        f"the word in the first column, got {language[0]!r} before every word; leave it out "
        f"(sed 's/^{language[0]}//' does)"
    )


_MISTAKES = (
    _of_2012,
    _with_commas,
    _numbers_of_words,
    _names_of_sentences,
    _tags_first,
    _places_of_characters,
    _languages,
)
"""Forms of files whose first column does not hold the words. Each function says what was expected and what was got, or
returns None for a file of another form; the first that says something counts."""


def check_tags(path: str, lines: Lines, columns: Columns) -> None:
    """Raises DataError for tags in BMES, which is IOBES with M- instead of I- and common in Chinese data sets, and for
    types without a letter, as in files of Stanford's NER and HAREM. Arguments are those of `check_words`."""
    seen = {of_line[-1][:2] for sentence in columns for of_line in sentence if len(of_line) > 1}
    _check_types(path, lines, columns)
    if "M-" in seen and "I-" not in seen and seen & {"E-", "S-"}:
        pairs = zip(itertools.chain(*lines), itertools.chain(*columns), strict=True)
        number, tag = next((number, last) for (number, _), (*_, last) in pairs if last.startswith("M-"))
        raise DataError(
            f"{path}, line {number}: expected tags of IOB, IOBES or BILOU, got {tag!r} of BMES; write I- for M- "
            r"(sed -E 's/([ \t])M-([^ \t]+)$/\1I-\2/' does)"
        )


def _check_types(path: str, lines: Lines, columns: Columns) -> None:
    """Raises DataError if at least half of the words are O, and all others have a type without a letter."""
    tagged = [
        (number, line, of_line[-1])
        for numbered, sentence in zip(lines, columns, strict=True)
        for (number, line), of_line in zip(numbered, sentence, strict=True)
        if len(of_line) > 1
    ]
    typed = [found for found in tagged if found[-1] != "O"]
    # A single one is a typing error, for which only its sentence is refused.
    if len(typed) < 2 or 2 * len(typed) > len(tagged) or not all(_TYPE.fullmatch(last) for *_, last in typed):
        return
    number, line, last = typed[0]
    # When awk sets a column, it joins the columns of the line again, by OFS.
    begin = r'BEGIN {FS = OFS = "\t"} ' if "\t" in line else ""
    awk = rf"""awk '{begin}NF > 1 && $NF !~ /^O\r?$/ {{$NF = "I-" $NF}} {{print}}'"""
    raise DataError(
        f"{path}, line {number}: expected tags such as I-{last}, got {last!r}; "
        f"put a letter before every type ({awk} does)"
    )


def say_if_joined(path: str, columns: Columns) -> None:
    """Warns of tags that join several, as those of nested entities, which become types of their own. Arguments are
    those of `check_words`."""
    lasts = (of_line[-1] for sentence in columns for of_line in sentence if len(of_line) > 1)
    joined = next(filter(_JOINED.fullmatch, lasts), None)
    if joined is not None:
        _log.warning(
            "%s: tags such as %s join several, and are taken for types of their own (%s keeps the first)",
            path,
            joined,
            r"sed -E 's/([ \t][BIESLU]-[^| \t]+)\|[^ \t]*$/\1/' FILE",
        )


def say_if_tagged_twice(path: str, lines: Lines, columns: Columns, width: int) -> None:
    """Warns if the last two of ``width`` columns are both tags and have types in common; the last column is used. They
    may be entities and nested entities, as in GermEval, or gold and predicted tags, as in files of predictions. The
    other arguments are those of `check_words`."""
    if width < 3:
        return
    found = [of_line for sentence in columns for of_line in sentence if len(of_line) == width]
    before, last = ({of_line[at] for of_line in found} for at in (-2, -1))
    if not all(map(is_any_tag, before)):
        return
    kinds = {tag[2:] for tag in before - {"O"}} & {tag[2:] for tag in last}  # chunks have other types
    if kinds:
        tabs = any("\t" in line for sentence in lines for _, line in sentence)
        _log.warning(
            "%s: columns %d and %d both have tags of the types %s; those of the last are taken (%s keeps the others)",
            path,
            width - 1,
            width,
            shorten(", ".join(sorted(kinds))),
            f"cut -f 1,{width - 1} FILE" if tabs else f"awk 'NF {{print $1, ${width - 1}; next}} {{print}}' FILE",
        )


def is_any_tag(text: str) -> bool:
    """Whether a text is a tag of any scheme."""
    return text == "O" or (text[1:2] == "-" and any(is_tag(text, name) for name in LETTERS))


def _numbered(columns: Columns) -> bool:
    """Whether the first column of every sentence is 1, 2, 3, ... or 0, 1, 2, ...; CoNLL-U also has 2-3 and 5.1. Or
    whether it only has rising numbers, as of the words of a file, of sentence and word (1-2), or of characters."""
    if not all(of_line[0][:1].isdecimal() for sentence in columns for of_line in sentence):
        return False
    whole = [[word for word, *_ in sentence if not _PART.fullmatch(word)] for sentence in columns]
    counted = (all(words == [str(n + start) for n in range(len(words))] for words in whole) for start in (0, 1))
    return (max(map(len, whole)) > 1 and any(counted)) or _rising([[word for word, *_ in part] for part in columns])


def _rising(sentences: Sequence[Sequence[str]]) -> bool:
    """Whether all words are numbers, or pairs of them, that rise in every sentence. Two numbers alone may be words."""
    places = [list(map(_PLACE.fullmatch, words)) for words in sentences]
    if max(map(len, places)) < 3 or any(None in of_sentence for of_sentence in places):
        return False
    numbers = [[tuple(map(int, filter(None, place.groups()))) for place in of_sentence] for of_sentence in places]
    return all(before < after for of_sentence in numbers for before, after in itertools.pairwise(of_sentence))


def _segmented(columns: Columns) -> bool:
    """Whether the first column has characters, each with its place in a word, from 0. Some are not ASCII: w0, w1, w2
    may be words."""
    firsts = [[of_line[0] for of_line in sentence] for sentence in columns]
    found = set(itertools.chain(*firsts))
    if not all(map(_SEGMENTED.fullmatch, found)) or all(map(str.isascii, found)):
        return False
    places = ([-1, *(int(first[1:]) for first in of_sentence)] for of_sentence in firsts)
    return all(after in (0, before + 1) for found in places for before, after in itertools.pairwise(found))
