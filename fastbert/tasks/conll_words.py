"""What published files of tagged words have in place of the word in their first column: it would be learned as if it
were the word, and nobody would be told."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..errors import DataError
from .tagging import LETTERS, is_tag

_LANGUAGE = re.compile(r"[a-z][a-z-]{1,11}:(?!//)")
_WITH_COMMAS = re.compile(r".*,(O|[BI]-[^,]+)")
_PART = re.compile(r"\d+[-.]\d+")


def check_words(path: str, sentences: Sequence[Sequence[tuple[int, str, list[str]]]]) -> None:
    """Raises DataError where the first column is not the words, with what brings them there.

    Args:
        path: what messages call the file.
        sentences: number, text and columns of every line.
    """
    lines = [line for sentence in sentences for line in sentence]
    if not lines:
        return
    where = f"{path}, line {lines[0][0]}: expected"
    if lines[0][1].startswith("#begin document"):
        raise DataError(
            f"{where} a word a line with its tag last, got a document of CoNLL-2012 (OntoNotes), whose words are in "
            "the fourth column and whose entities are in brackets; write the two as 'word tag' first"
        )
    if 2 * sum(_WITH_COMMAS.fullmatch(text) is not None for _, text, _ in lines) > len(lines):
        raise DataError(f"{where} columns parted by blanks or tabs, got commas: {lines[0][1][:60]!r}")
    columns = [found for *_, found in lines]
    width = len(columns[0])
    # Of two columns the second may be the tags of words that are numbers; GermEval's test file has no tags.
    words_behind = width > 2 or (width == 2 and 2 * sum(_is_any_tag(found[-1]) for found in columns) < len(columns))
    if words_behind and _numbered([[found[0] for *_, found in sentence] for sentence in sentences if sentence]):
        # GermEval's last column has the entities within others.
        inner = width == 4 and all(len(found) == 4 and _is_any_tag(found[-2]) for found in columns)
        cut = "cut -f 2,3 keeps words and outer entities" if inner else "cut -f 2- does"
        raise DataError(
            f"{where} the word in the first column, got the numbers of words in every sentence; leave that column out "
            f"(grep -v '^#' FILE | {cut})"
        )
    firsts = [found[0] for found in columns]
    tags_first = width > 1 and all(map(_is_any_tag, firsts)) and any(first != "O" for first in firsts)
    if tags_first and not all(_is_any_tag(found[-1]) for found in columns):
        raise DataError(
            f"{where} the word in the first column and its tag in the last, got tags in the first; "
            "turn the columns round (awk 'NF {print $2, $1; next} {print}' does, of two)"
        )
    language = _LANGUAGE.match(firsts[0])
    if len(firsts) > 1 and language is not None and all(first.startswith(language[0]) for first in firsts):
        raise DataError(
            f"{where} the word in the first column, got {language[0]!r} before every word; leave it out "
            f"(sed 's/^{language[0]}//' does)"
        )


def check_tags(path: str, sentences: Sequence[Sequence[tuple[int, str, list[str]]]]) -> None:
    """Raises DataError for tags of BMES, as Chinese data sets have them: IOBES with M- in place of I-.

    Args: as of `check_words`.
    """
    last = [(number, found[-1]) for sentence in sentences for number, _, found in sentence if len(found) > 1]
    seen = {tag[:2] for _, tag in last}
    if "M-" in seen and "I-" not in seen and seen & {"E-", "S-"}:
        number, tag = next((number, tag) for number, tag in last if tag.startswith("M-"))
        raise DataError(
            f"{path}, line {number}: expected tags of IOB, IOBES or BILOU, got {tag!r} of BMES; write I- for M- "
            r"(sed -E 's/([ \t])M-([^ \t]+)$/\1I-\2/' does)"
        )


def _is_any_tag(text: str) -> bool:
    return any(is_tag(text, name) for name in LETTERS)


def _numbered(sentences: Sequence[Sequence[str]]) -> bool:
    """Whether the words of every sentence are 1, 2, 3, ..., or 0, 1, 2, ...; CoNLL-U has 2-3 and 5.1 in between."""
    whole = [[word for word in words if not _PART.fullmatch(word)] for words in sentences]
    if max(map(len, whole)) < 2:
        return False
    return any(all(words == [str(n + start) for n in range(len(words))] for words in whole) for start in (0, 1))
