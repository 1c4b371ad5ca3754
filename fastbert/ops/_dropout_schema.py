"""A `Dropout` as arguments of a torch op, which takes numbers and tensors alone."""

from __future__ import annotations

from torch import Tensor

from ..rng import Dropout

_LOW63 = (1 << 63) - 1

# The arguments of a schema that stand for a `Dropout`; threshold 0 means none. If seed and offset are only known when
# the op runs, as in a compiler's graph, they are in rng, (2,) int64, which the op only reads.
SCHEMA = "int threshold, int seed, int offset, int site, Tensor? rng"
TENSORS = "rng: int64 (2)"


def dropout_of(threshold: int, seed: int, offset: int, site: int, rng: Tensor | None) -> Dropout | None:
    """The inverse of `arguments`, but for the numbers of a key whose numbers are in memory."""
    if not threshold:
        return None
    known = (seed, offset) if rng is None else (None, None)
    return Dropout(threshold / 65536, *known, site, rng)


def arguments(dropout: Dropout | None) -> tuple[int, int, int, int, Tensor | None]:
    """(threshold, seed, offset, site, rng) for a schema, in torch's signed integers."""
    if dropout is None:
        return 0, 0, 0, 0, None
    if dropout.seed is None:
        return dropout.threshold, 0, 0, dropout.site, dropout.state
    seed = dropout.seed & 0xFFFFFFFFFFFFFFFF
    return dropout.threshold, seed if seed <= _LOW63 else seed - (1 << 64), dropout.offset, dropout.site, None
