"""The alphabet of a corpus: with a given alphabet, the training of a vocabulary is deterministic.

As in SentencePiece, characters are kept until they cover a given share of the text ("character coverage", 0.9995 for
Chinese and Japanese).
"""

from __future__ import annotations

import collections
import unicodedata
from collections.abc import Iterable
from itertools import accumulate

FEW = 1000
"""The most frequent characters that are always kept; alphabetic scripts have fewer."""
COVERAGE = 0.9995
"""The share of the text that the kept characters must cover, if `FEW` do not."""


def alphabet(texts: Iterable[str], lowercase: bool = True, strip_accents: bool | None = None) -> list[str]:
    """The characters that WordPiece sees after normalisation: as many as cover `COVERAGE` of the text, but at least the
    first `FEW`.

    Args:
        texts: consumed once.
        lowercase, strip_accents: the tokenizer's settings; with ``strip_accents`` None, accents are stripped if text
            is lower-cased.

    Returns:
        the characters, the most frequent first, those of equal frequency in the order of Unicode.
    """
    strip_accents = lowercase if strip_accents is None else strip_accents
    written: collections.Counter[str] = collections.Counter()
    for text in texts:
        written.update(text)
    counts: collections.Counter[str] = collections.Counter()
    for letter, count in written.items():
        seen = letter.lower() if lowercase else letter
        for part in unicodedata.normalize("NFD", seen) if strip_accents else seen:
            counts[part] += count
    kept = (letter for letter in counts if letter.isprintable() and not letter.isspace())
    if strip_accents:
        kept = (letter for letter in kept if unicodedata.category(letter) != "Mn")
    ordered = sorted(kept, key=lambda letter: (-counts[letter], letter))
    covered = list(accumulate(counts[letter] for letter in ordered))
    enough = sum(share < COVERAGE * covered[-1] for share in covered) + 1
    return ordered[: max(FEW, enough)]
