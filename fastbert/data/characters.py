"""Words as rows of characters, the way ELMo reads them.

A character is a byte of UTF-8, 0 to 255. Five more ids mark the beginnings and ends of sentences and words and pad the
row (Peters et al. 2018; the numbering is that of the published weights before they add 1 for a masked row). A word of
the bytes w1..wn is ``BEGIN_WORD w1 .. wn END_WORD PAD PAD ...``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ..errors import InputError

BEGIN_SENTENCE, END_SENTENCE, BEGIN_WORD, END_WORD, PAD = range(256, 261)
NUM_CHARACTERS = 261
MAX_CHARACTERS = 50

# The tokens at the two ends of a packed sequence serve as ELMo's sentence marks.
_MARKS = {"[CLS]": BEGIN_SENTENCE, "[SEP]": END_SENTENCE}


def characters_of(words: Iterable[str], max_characters: int = MAX_CHARACTERS) -> np.ndarray:
    """The characters of any words, in a vocabulary or not.

    Args:
        words: the words. Pieces of a vocabulary are words too, in the vocabulary's spelling (``##ing``, ``[MASK]``);
            ``[CLS]`` and ``[SEP]`` become ELMo's marks of the two ends of a sentence.
        max_characters: the length of a row, including the two marks of the word's ends; longer words are cut off.

    Returns:
        (words, max_characters) int16.

    Raises:
        InputError: max_characters is below 3.
    """
    if max_characters < 3:
        raise InputError(f"max_characters must be at least 3, a byte between the ends of a word, got {max_characters}")
    words = list(words)
    table = np.full((len(words), max_characters), PAD, np.int16)
    for row, word in zip(table, words, strict=True):
        middle = [_MARKS[word]] if word in _MARKS else list(word.encode("utf-8", "surrogatepass"))
        spelt = [BEGIN_WORD, *middle[: max_characters - 2], END_WORD]
        row[: len(spelt)] = spelt
    return table


def character_table(tokenizer, max_characters: int = MAX_CHARACTERS) -> np.ndarray:
    """The characters of every token of a vocabulary.

    Args:
        tokenizer: a tokenizers.Tokenizer.

    Returns:
        (largest id + 1, max_characters) int16; an id that no token has is an empty word.
    """
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    spelt = [""] * (max(vocabulary.values()) + 1)
    for token, index in vocabulary.items():
        spelt[index] = token
    return characters_of(spelt, max_characters)


def characters_of_sentences(
    sentences: Sequence[Sequence[str]], max_characters: int = MAX_CHARACTERS
) -> tuple[np.ndarray, np.ndarray]:
    """The characters of sentences, between the marks of their ends, for a model that reads characters instead of ids.

    Returns:
        (T, max_characters) int16; (B,) int64 lengths, each two more than its sentence has words.
    """
    flat = [word for sentence in sentences for word in ("[CLS]", *sentence, "[SEP]")]
    return characters_of(flat, max_characters), np.array([len(s) + 2 for s in sentences], dtype=np.int64)
