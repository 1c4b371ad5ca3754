"""Chunks of texts, bounded in number and in length: a line of a file may be a sentence or a book."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np

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


def batches_by_length(lengths: Sequence[int], token_budget: int) -> list[np.ndarray]:
    """Batches of similar length, as int64 arrays of indices, the longest first, so that memory peaks at the start, and
    a batch that does not fit into it fails at once.

    Args:
        lengths: the number of tokens of each sequence.
        token_budget: the most tokens in a batch; a longer sequence is a batch of its own.
    """
    batches: list[list[int]] = []
    tokens = 0
    for index in np.argsort(-np.asarray(lengths, np.int64), kind="stable").tolist():
        if not batches or tokens + lengths[index] > token_budget:
            batches.append([])
            tokens = 0
        batches[-1].append(index)
        tokens += lengths[index]
    return [np.array(batch) for batch in batches]
