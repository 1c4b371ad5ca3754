"""Texts in chunks, bounded by their number and by their length: a line of a file may be a sentence or a book."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Text = TypeVar("Text")  # a text, a pair, a list of words, or whatever `length` knows

CHARACTERS = 1 << 20
"""Of a chunk that is encoded at once. What the `tokenizers` library keeps of a text while it encodes it takes about 150
bytes a character: without this bound 500 documents of 100 KB took seven gigabytes."""

WINDOW, WINDOW_CHARACTERS = 1024, 1 << 24
"""Texts of a file that a model computes at a time, and their characters: enough to sort by length, little enough to
keep memory flat."""


def characters_of(text: str | Iterable[str]) -> int:
    """Of a text, a pair, or a list of words."""
    return len(text) if isinstance(text, str) else sum(map(len, text))


def chunks(
    texts: Iterable[Text],
    most: int,
    characters: int = CHARACTERS,
    length: Callable[[Text], int] = characters_of,
) -> Iterator[list[Text]]:
    """Cuts texts, in their order, into lists of at most ``most`` texts and ``characters`` characters; one that alone
    is longer has a list of its own.

    Args:
        length: the characters of one.
    """
    chunk: list[Text] = []
    held = 0
    for text in texts:
        taken = length(text)
        if chunk and held + taken > characters:
            yield chunk
            chunk, held = [], 0
        chunk.append(text)
        held += taken
        if len(chunk) == most:
            yield chunk
            chunk, held = [], 0
    if chunk:
        yield chunk


def windows(texts: Iterable[Text], length: Callable[[Text], int] = characters_of) -> Iterator[list[Text]]:
    """What a model computes at a time of a stream of texts, in their order; ``length`` as in `chunks`."""
    return chunks(texts, WINDOW, WINDOW_CHARACTERS, length)
