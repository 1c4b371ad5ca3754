"""Chunks of texts, bounded in number and in length: a line of a file may be a sentence or a book."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Text = TypeVar("Text")  # a text, a pair, a list of words, or whatever `length` knows

CHARACTERS = 1 << 20
"""The most characters of a chunk that is encoded at once. The `tokenizers` library needs about 150 bytes a character
while it encodes: without this bound, 500 documents of 100 KB took seven gigabytes."""

WINDOW, WINDOW_CHARACTERS = 1024, 1 << 24
"""The most texts, and characters, of a file that a model computes at a time: enough to sort them by length, few enough
to keep memory constant."""


def characters_of(text: str | Iterable[str]) -> int:
    """The number of characters of a text, a pair, or a list of words."""
    return len(text) if isinstance(text, str) else sum(map(len, text))


def chunks(
    texts: Iterable[Text],
    most: int,
    characters: int = CHARACTERS,
    length: Callable[[Text], int] = characters_of,
) -> Iterator[list[Text]]:
    """Groups texts, in their order, into lists of at most ``most`` texts and ``characters`` characters; a text that is
    longer makes a list by itself.

    Args:
        length: gives the number of characters of a text.
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
    """The chunks of a stream of texts, in their order, that a model computes at a time; ``length`` as in `chunks`."""
    return chunks(texts, WINDOW, WINDOW_CHARACTERS, length)
