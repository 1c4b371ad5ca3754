"""A light rule-based sentence segmenter for English, which also knows the full stops of other scripts."""

from __future__ import annotations

import re
from collections.abc import Sequence

# The dots, and the full stops of Indian scripts, Arabic, Urdu, Armenian, Ethiopic, Burmese and Khmer.
_MARKS = ".!?…।॥؟۔։።။។"  # noqa: RUF001
# Quotes and brackets. Which quotes open and which close depends on the language: “Yes”, „Ja“, »Ja«, ”Ja”.
_OPENING = "\"'“”‘«»‹›„‚([¿¡"  # noqa: RUF001
_CLOSING = "\"'“”‘’«»‹›)]"  # noqa: RUF001
# Terminal marks, closing quotes or brackets, white space; then something that can begin a sentence. A match begins only
# at the first of several marks: otherwise the time for a run of thousands would be quadratic. French has blanks inside
# its quotes. Chinese and Japanese have no white space there.
_BOUNDARY = re.compile(
    rf"[{_MARKS}](?<![{_MARKS}].)[{_MARKS}]*(?:[{re.escape(_CLOSING)}]|\s[»›])*\s+"  # noqa: RUF001
    rf"(?=(?:[{re.escape(_OPENING)}]|[«‹]\s)*([^\Wa-z_]))"  # noqa: RUF001
    r"|[。！？]+[”’」』）]*(?=\S)"  # noqa: RUF001
)
# Words before a full stop that does not end a sentence.
ABBREVIATIONS = frozenset(
    "mr mrs ms messrs mme mlle dr prof st mt ft rev hon gen col capt cap lt maj sgt cmdr adm gov pres sen rep supt "  # noqa: SIM905
    "jr sr esq vs viz cf al fig figs eq eqs sec ch chap vol vols pp ed eds approx dept univ inc ltd co corp bros "
    "jan feb mar apr jun jul aug sep sept oct nov dec mon tue tues wed thu thur thurs fri sat".split()
)
# Abbreviations only before a number: "No. 5", but not "No. He left."
_BEFORE_NUMBERS = frozenset("no nos p art op".split())  # noqa: SIM905

# A document has one sentence in each line if no more than this share of its lines has a boundary inside.
ONE_PER_LINE = 0.2


def split_sentences(text: str) -> list[str]:
    """Splits a paragraph into sentences, which are stripped and never empty and keep all words in order."""
    out = []
    start = looked_at = 0
    for match in _BOUNDARY.finditer(text):
        before, looked_at = text[looked_at : match.start()], match.end()
        if _goes_on(text, before, match):
            continue
        out.append(text[start : match.end()].strip())
        start = match.end()
    out.append(text[start:].strip())
    return [sentence for sentence in out if sentence]


def segment_lines(lines: Sequence[str]) -> list[str]:
    """The sentences of a document whose lines are either sentences or paragraphs.

    Which of the two they are is decided for the document as a whole: in a text that already has one sentence in each
    line, the segmenter's rare mistakes must not split lines.
    """
    split = [split_sentences(line) for line in lines]
    several = sum(len(sentences) > 1 for sentences in split)
    if several <= ONE_PER_LINE * len(lines):
        return [line for line in map(str.strip, lines) if line]
    return [sentence for sentences in split for sentence in sentences]


def _goes_on(text: str, before: str, match: re.Match) -> bool:
    """Whether a sentence goes on after a match of _BOUNDARY: with a small letter, or after the full stop of an
    abbreviation or an initial.

    Args:
        before: the text between the previous match and this one.
    """
    if (match[1] or "").islower():
        return True
    mark = match.group()
    if mark[0] != "." or mark.rstrip() != ".":
        return False
    word = f"{before}.".rsplit(maxsplit=1)[-1][:-1].lstrip(_OPENING + "—-")
    if len(word) == 1:
        # An initial, as in "J. Austen"; but the pronoun I can end a sentence.
        return word.isupper() and word != "I"
    lower = word.lower()
    if lower in ABBREVIATIONS or "." in word.strip("."):
        return True
    return lower in _BEFORE_NUMBERS and text[match.end() : match.end() + 1].isdigit()
