"""Texts in chunks, bounded by their number and by their length: a line of a file may be a sentence or a book."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

Text = TypeVar("Text")  # a text, a pair, or a list of words

CHARACTERS = 1 << 20
"""Of a chunk that is encoded at once. What the `tokenizers` library keeps of a text while it encodes it takes about 150
bytes a character: without this bound 500 documents of 100 KB took seven gigabytes."""


def chunks(texts: Iterable[Text], most: int, characters: int = CHARACTERS) -> Iterator[list[Text]]:
    """Cuts texts, in their order, into lists of at most ``most`` texts and ``characters`` characters; one that alone
    is longer has a list of its own."""
    chunk: list[Text] = []
    held = 0
    for text in texts:
        length = len(text) if isinstance(text, str) else sum(map(len, text))
        if chunk and held + length > characters:
            yield chunk
            chunk, held = [], 0
        chunk.append(text)
        held += length
        if len(chunk) == most:
            yield chunk
            chunk, held = [], 0
    if chunk:
        yield chunk
