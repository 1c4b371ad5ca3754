"""The random numbers of a forward pass: keys of the counter-based generator that every dropout uses.

The generator is Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011). A key stands
for all random numbers of one forward pass, a site for one dropout in it. The bits of an element only depend on (seed,
offset, site, row, column), so a mask is the same on every backend and device, for packed tokens and for padded ones of
which the pads are left out, and when activations are recomputed. `fastbert.reference.dropout` has the mapping.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .errors import InputError
from .transforms import is_transformed

# Site numbers: layer n has LAYER_SITES of them, from FIRST_LAYER_SITE + n * LAYER_SITES on; heads are above all layers.
EMBEDDING_SITE = 0
FIRST_LAYER_SITE = 1
LAYER_SITES = 4
HEAD_SITE = 1 << 20


@dataclass(frozen=True)
class Dropout:
    """What an op needs for dropout: the probability and the place in the random stream.

    Args:
        p: the probability with which an element is dropped.
        seed, offset, site: the place in the random stream; seed and offset are None if they are only in ``state``, as
            in a compiler's graph.
        state: (2,) int64, seed and offset in memory, from which kernels that can do so read them when they run; or
            None.
    """

    p: float
    seed: int | None
    offset: int | None
    site: int
    state: Tensor | None = field(default=None, compare=False, repr=False)

    @property
    def threshold(self) -> int:
        """An element is dropped if its 16 random bits are below this number."""
        return round(self.p * 65536)

    @property
    def scale(self) -> float:
        """The factor on kept elements, 1 / P(kept) with the exact probability, so the expectation is exact."""
        return 65536 / (65536 - self.threshold) if self.threshold < 65536 else 0.0


@dataclass(frozen=True)
class DropoutKey:
    """Stands for the random numbers of one forward pass.

    Args:
        seed: 64 bits, the run's seed.
        offset: 32 bits, the number of the forward pass (a trainer uses its micro-step).
        state: (2,) int64, both in device memory, for a forward pass that is replayed (`Dropout`); or None.
    """

    seed: int | None
    offset: int | None = 0
    state: Tensor | None = field(default=None, compare=False, repr=False)

    def site(self, p: float, site: int) -> Dropout | None:
        """The dropout at one place in the model, or None if p is 0.

        Raises:
            InputError: p is outside 0..1.
        """
        if not 0.0 <= p <= 1.0:
            raise InputError(f"a dropout probability must be between 0 and 1, got {p}")
        return Dropout(p, self.seed, self.offset, site, self.state) if p > 0.0 else None


class _DrawnLater(DropoutKey):
    """A key that is drawn by the first dropout with p > 0. A pass without such a dropout then draws nothing, as with
    torch's dropout: vmap would refuse a draw."""

    def site(self, p: float, site: int) -> Dropout | None:
        if p > 0.0 and self.state is None:
            object.__setattr__(self, "state", _draw_state())
        return super().site(p, site)


def _draw_state() -> Tensor:
    """A fresh seed, and offset 0, as a tensor: in a pass that torch exports or transforms it must not be a number."""
    seed = torch.randint(1 << 62, (1,), dtype=torch.int64, device="cpu")
    return torch.cat([seed, torch.zeros_like(seed)])


_current: ContextVar[DropoutKey | None] = ContextVar("fastbert_dropout_key", default=None)


def draw() -> DropoutKey:
    """A fresh key from torch's default CPU generator, so that ``torch.manual_seed`` governs it."""
    return DropoutKey(int(torch.randint(1 << 62, (), dtype=torch.int64, device="cpu")))


def current() -> DropoutKey:
    """The key that `use` set, or a fresh one.

    Under `torch.compile`, seed and offset are the result of an op, so that a compiled pass draws new numbers in every
    run; every implementation of dropout reads them from memory then. The same holds if torch exports or transforms the
    pass (`transforms`): an exported program draws in every run, and under vmap each example may draw its own.
    """
    compiling = torch.compiler.is_compiling()
    given = None if compiling else _current.get()
    if given is None and is_transformed():
        return DropoutKey(None, None, _draw_state()) if compiling else _DrawnLater(None, None)
    if compiling:
        return DropoutKey(None, None, torch.ops.fastbert.dropout_state(torch.empty(0, device="cpu")))
    return given or draw()


def _dropout_state(_call: Tensor) -> Tensor:
    key = current()
    seed = key.seed & 0xFFFFFFFFFFFFFFFF
    return torch.tensor([seed - (1 << 64) if seed >> 63 else seed, key.offset], dtype=torch.int64, device="cpu")


def _dropout_state_fake(_call: Tensor) -> Tensor:
    return torch.empty(2, dtype=torch.int64, device="cpu")


# The argument distinguishes calls: torch's compiler would merge two calls with equal arguments, and two forward passes
# would drop the same elements. The tag says that the op draws, so that recomputation for backward replays it.
_library = torch.library.Library("fastbert", "FRAGMENT")
_library.define(
    "dropout_state(Tensor call) -> Tensor", tags=(torch.Tag.pt2_compliant_tag, torch.Tag.nondeterministic_seeded)
)
_library.impl("dropout_state", _dropout_state, "CompositeExplicitAutograd")
torch.library.register_fake("fastbert::dropout_state", _dropout_state_fake, lib=_library)


@contextmanager
def use(key: DropoutKey) -> Iterator[None]:
    """Makes every forward pass inside the block use this key."""
    token = _current.set(key)
    try:
        yield
    finally:
        _current.reset(token)
