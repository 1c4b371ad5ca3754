"""The letters of a corpus, counted: a vocabulary that is trained on them does not depend on chance.

Which of them a vocabulary is to have, SentencePiece decides by the share of the text that they are ("character
coverage", 0.9995 for Chinese and Japanese), and so is it done here.
"""

from __future__ import annotations

import collections
import unicodedata
from collections.abc import Iterable
from itertools import accumulate

FEW = 1000
"""Characters that a vocabulary has room for whatever they are; alphabets alone have fewer."""
COVERAGE = 0.9995
"""The share of a text whose characters are kept where it has more."""


def alphabet(texts: Iterable[str], lowercase: bool = True, strip_accents: bool | None = None) -> list[str]:
    """The characters that WordPiece sees, the commonest first, equals in the order of Unicode: as many as make up
    `COVERAGE` of the text, and `FEW` in any case.

    Args:
        texts: consumed once.
        lowercase, strip_accents: as the tokenizer has them; accents go with capitals where ``strip_accents`` is None.
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
