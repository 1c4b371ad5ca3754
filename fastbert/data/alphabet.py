"""The letters of a corpus, counted: a vocabulary that is trained on them does not depend on chance."""

from __future__ import annotations

import collections
import unicodedata
from collections.abc import Iterable


def alphabet(texts: Iterable[str], lowercase: bool = True, strip_accents: bool | None = None) -> list[str]:
    """The characters that WordPiece sees, the commonest first, equals in the order of Unicode.

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
    return sorted(kept, key=lambda letter: (-counts[letter], letter))
