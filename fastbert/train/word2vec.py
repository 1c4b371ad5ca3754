"""word2vec (Mikolov et al. 2013) by gensim: static vectors of the same tokens that the other models are trained on."""

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

# gensim ignores what follows after this many tokens of a sentence.
_LONGEST = 10_000


@dataclass(frozen=True, kw_only=True)
class Word2VecConfig:
    """The options of word2vec. Defaults are those of the paper's code for skip-gram (whose rate for CBOW is 0.05),
    except for size, which is that of its published vectors, and min_count.

    Training runs in one thread, so the same seed gives bitwise the same vectors.
    """

    algorithm: Literal["cbow", "skipgram"] = "skipgram"
    """Predict a token from the mean of its neighbours, or each neighbour from the token."""
    size: int = 300
    """The dimension of a vector."""
    window: int = 5
    """The most tokens on either side that count as neighbours."""
    negative: int = 5
    """Negative samples: random tokens per correct one."""
    epochs: int = 5
    """Passes over the text."""
    min_count: int = 1
    """Tokens that occur less often get vectors of zeros."""
    sample: float = 1e-3
    """Subsampling: tokens with a larger share of the text are randomly left out, more often the more frequent they
    are."""
    lr: float = 0.025
    """The initial learning rate; it falls linearly to nearly 0."""
    seed: int = 0
    """Seed of the initial vectors and all random draws."""

    def __post_init__(self) -> None:
        check_choices(self)
        for name in ("size", "window", "negative", "epochs", "min_count"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise InputError(f"{name} must be a whole number, at least 1, got {value!r:.100}")
        for name in ("lr", "sample"):
            if not 0 <= getattr(self, name) < math.inf:
                raise InputError(f"{name} must be a number from 0 up, got {getattr(self, name)}")
        if type(self.seed) is not int or not 0 <= self.seed < 1 << 32:  # gensim draws by numpy, whose seeds are uint32
            raise InputError(f"seed must be a whole number from 0 to 2^32 - 1 for word2vec, got {self.seed}")


class ShardSentences:
    """Iterates over the sentences of a split, as arrays of token ids; any number of times."""

    def __init__(self, shards: ShardSet) -> None:
        self.shards = shards

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self.shards.sentence(number) for number in range(self.shards.num_sentences))


class _Words:
    """Sentences in the form that gensim reads: lists of strings, of at most `_LONGEST`."""

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
    """Raises InputError if gensim is not installed."""
    if importlib.util.find_spec("gensim") is None:
        raise InputError(_NEEDED)


def train_word2vec(
    sentences: Iterable[Sequence[int]], vocab_size: int, config: Word2VecConfig | None = None, **values
) -> StaticEncoder:
    """Trains a table of vectors.

    Args:
        sentences: sequences of token ids; read `epochs` + 1 times, so not an iterator (`ShardSentences`, a list).
        vocab_size: V, the rows of the table.
        config: the options; None for the defaults.
        values: further fields of the model's configuration, such as pad_token_id.

    Returns:
        the encoder, in evaluation mode, with a (V, config.size) float32 table.

    Raises:
        InputError: gensim is not installed, or the sentences can be read only once or do not consist of ids.
        DataError: no token occurs ``min_count`` times, or an id is outside 0..V-1.
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
