"""word2vec (Mikolov et al. 2013) by gensim: vectors of tokens from the very tokens that the other models train on."""

from __future__ import annotations

import importlib.util
import math
import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np
import torch

from ..data.shards import ShardSet
from ..errors import DataError, InputError
from ..models.static import StaticEncoder
from ..options import check_choices

# gensim leaves out what stands after so many tokens of a sentence.
_LONGEST = 10_000


@dataclass(frozen=True, kw_only=True)
class Word2VecConfig:
    """How vectors are made; the values are those of the paper's code for skip-gram (its rate for CBOW is 0.05), but for
    the size, which is that of its published vectors, and for tokens that are rare.

    One process with one thread: with one seed the vectors come to the same bits.
    """

    algorithm: Literal["cbow", "skipgram"] = "skipgram"
    """Predict a token from the mean of its neighbours, or each neighbour from the token."""
    size: int = 300
    """Numbers of a vector."""
    window: int = 5
    """The most tokens on either side that are neighbours."""
    negative: int = 5
    """Tokens drawn by chance against each right one."""
    epochs: int = 5
    """Passes over the text."""
    min_count: int = 1
    """Tokens that stand less often in the text have zeros."""
    sample: float = 1e-3
    """Share of the text above which a token is left out at times, the more often the more frequent it is."""
    lr: float = 0.025
    """The rate at the start; it falls to next to nothing."""
    seed: int = 0
    """Of the first vectors and all draws."""

    def __post_init__(self) -> None:
        check_choices(self)
        for name in ("size", "window", "negative", "epochs", "min_count"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise InputError(f"{name} must be a whole number, at least 1, got {value!r:.100}")
        for name in ("lr", "sample"):
            if not 0 <= getattr(self, name) < math.inf:
                raise InputError(f"{name} must be a number from 0 up, got {getattr(self, name)}")
        if type(self.seed) is not int or not 0 <= self.seed < 1 << 32:  # numpy's, by which gensim draws
            raise InputError(f"seed must be a whole number from 0 to 2^32 - 1 for word2vec, got {self.seed}")


class ShardSentences:
    """The sentences of a split, as ids; can be read again and again."""

    def __init__(self, shards: ShardSet) -> None:
        self.shards = shards

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self.shards.sentence(number) for number in range(self.shards.num_sentences))


class _Words:
    """What gensim reads: lists of strings, no longer than it takes them."""

    def __init__(self, sentences: Iterable[Sequence[int]]) -> None:
        self.sentences = sentences

    def __iter__(self) -> Iterator[list[str]]:
        for ids in self.sentences:
            words = [str(index) for index in _whole(ids)]
            yield from (words[begin : begin + _LONGEST] for begin in range(0, len(words), _LONGEST))


def _whole(ids: Sequence[int]) -> list[int]:
    try:
        return [operator.index(index) for index in ids]
    except TypeError:
        raise InputError(f"sentences must be of ids, whole numbers, got {ids!r:.100}") from None


_NEEDED = "word2vec needs gensim: pip install 'fastbert[study]', under Python 3.13 or older"


def check_installed() -> None:
    """Raises InputError where gensim is not installed."""
    if importlib.util.find_spec("gensim") is None:
        raise InputError(_NEEDED)


def train_word2vec(
    sentences: Iterable[Sequence[int]], vocab_size: int, config: Word2VecConfig | None = None, **values
) -> StaticEncoder:
    """Trains vectors.

    Args:
        sentences: ids of tokens; read `epochs` + 1 times, so no iterator (`ShardSentences`, a list).
        vocab_size: rows of the table.
        config: how; None for the defaults.
        values: further fields of the model's configuration, such as pad_token_id.

    Returns:
        the encoder, in evaluation mode.

    Raises:
        InputError: gensim is not installed, or the sentences can be read only once or are not of ids.
        DataError: the sentences hold no token often enough.
    """
    try:
        from gensim.models import Word2Vec
    except ImportError as error:
        raise InputError(f"{_NEEDED} ({error})") from error
    if iter(sentences) is sentences:
        raise InputError("sentences must be readable more than once, got an iterator")
    config = config or Word2VecConfig()
    options = {"window": config.window, "negative": config.negative, "min_count": config.min_count, "workers": 1}
    options |= {"sg": int(config.algorithm == "skipgram"), "vector_size": config.size, "sample": config.sample}
    try:
        found = Word2Vec(_Words(sentences), alpha=config.lr, epochs=config.epochs, seed=config.seed, **options)
    except RuntimeError as error:
        raise DataError(f"word2vec: expected tokens that occur {config.min_count} times, got none ({error})") from error
    vectors = torch.zeros(vocab_size, config.size)
    ids = [int(word) for word in found.wv.index_to_key]
    if not 0 <= min(ids) <= max(ids) < vocab_size:
        raise DataError(
            f"word2vec: expected ids from 0 to vocab_size - 1, {vocab_size - 1}, got {min(ids)} to {max(ids)}"
        )
    vectors[ids] = torch.from_numpy(found.wv.vectors)
    return StaticEncoder.of_vectors(vectors, trained_by={"word2vec": asdict(config)}, **values)
