"""Splitting plain text into words as CoNLL-2003 has them, with their places in the text.

Punctuation is a word of its own, except within a word (``O'Brien``, ``1996-08-22``, ``S&P``) and in abbreviations
(``U.S.``, ``J. Smith``, ``Inc.``). ``'s``, ``n't`` and their kin are words, as are French and Italian articles
(``l'``). Every Chinese character is a word, as BERT's tokenizers and most Chinese data sets have it.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterator

from ..data.sentences import ABBREVIATIONS

# The patterns read a text in which each character is replaced by its kind: A and a for upper-case and other letters, 0
# for digits, m for a mark on the character before, c for a Chinese character, x for what is not seen, b for blanks, s
# for punctuation and symbols; those of ASCII stay as they are.
_ALIKE = {"\u2019": "'", "\u2010": "-", "\u2011": "-", "_": "a"}
_OF_CATEGORY = {"Lu": "A", "Lt": "A", "L": "a", "N": "0", "M": "m", "Z": "b", "C": "x", "P": "s", "S": "s"}
_CHINESE = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
_PART = "(?:(?:[Aa]m*[.]){2,}|[Aa0](?:x*[Aa0m])*)"  # "U.S.", or letters and digits
_WITHIN = "(?:[-'&]|(?!(?<=a)[.]A)[.]|(?<=0)[,:/](?=0))"  # but there are two words in "Paris.He"
_WORD = re.compile(
    rf"(?:(?<![^b])[.+](?=0))?{_PART}(?:{_WITHIN}{_PART})*(?:(?<=A)[$])?"  # also .5, +44 and US$
    r"|([-.!?*=~])\1+"  # "..." and "--"
    r"|[^bmx](?:x*m)*"
)
_INITIAL = re.compile("Am*")
_ARTICLE = re.compile(r"(?:[cdjlmnstDL]|[Qq]u)['\u2019](?=\w)|[^\W\d_A-Z]+['\u2019](?=[A-Z])")
_ENDING = re.compile(r"(?i)(?:n['\u2019]t|['\u2019](?:s|re|m|ve|ll|d))$")


def word_spans(text: str) -> Iterator[tuple[int, int]]:
    """The beginning and end of each word of a text, in characters. Blanks, and characters that are not seen, are in no
    word, unless the latter are within one."""
    kinds, at = "".join(map(_kind, text)), 0
    while (found := _WORD.search(kinds, at)) is not None:
        begin, at = found.span()
        if kinds[at : at + 1] == "." and _has_full_stop(text, kinds, begin, at):
            at += 1
        yield from _apart(text, begin, at)


@functools.cache
def _kind(character: str) -> str:
    if character in _ALIKE:
        return _ALIKE[character]
    if character.isspace():
        return "b"
    if _CHINESE.match(character):
        return "c"
    category = unicodedata.category(character)
    if category[0] in "PS" and character.isascii():
        return character
    return _OF_CATEGORY.get(category) or _OF_CATEGORY[category[0]]


def _has_full_stop(text: str, kinds: str, begin: int, end: int) -> bool:
    """Whether the full stop after a word belongs to it, as to an initial or an abbreviation; not at the end of a
    text, and not in ``example.com``."""
    following = kinds[end + 1 : end + 2]
    if following in ("", *"a0c."):
        return False
    return _INITIAL.fullmatch(kinds, begin, end) is not None or text[begin:end].lower() in ABBREVIATIONS


def _apart(text: str, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """A word without the article before it and the ending after it, which are words too."""
    article = _ARTICLE.match(text, begin, end)
    if article is not None:
        yield begin, article.end()
        begin = article.end()
    ending = _ENDING.search(text, begin, end)
    cut = end if ending is None or ending.start() == begin else ending.start()
    yield begin, cut
    if cut < end:
        yield cut, end
