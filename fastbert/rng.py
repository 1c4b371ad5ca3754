"""Which random numbers a forward pass uses: keys of the counter-based generator behind every dropout.

The generator is Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011). A key names
all the numbers of one forward pass; a site names one dropout inside it. What an element draws depends on nothing but
(seed, offset, site, row, column), so a mask is the same on every backend and device, packed or padded, and again when
activations are recomputed. `fastbert.reference.dropout` holds the mapping.
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

# Site numbers: layer n takes LAYER_SITES of them from FIRST_LAYER_SITE on; heads lie far above any depth.
EMBEDDING_SITE = 0
FIRST_LAYER_SITE = 1
LAYER_SITES = 4
HEAD_SITE = 1 << 20


@dataclass(frozen=True)
class Dropout:
    """What an op needs to drop elements: probability p and the place in the random stream.

    With ``state``, (2,) int64 of seed and offset in memory, kernels that can read them there do so whenever they run;
    ``seed`` and ``offset`` are then what was there when this was made, or None where that is not known (in a compiler).
    """

    p: float
    seed: int | None
    offset: int | None
    site: int
    state: Tensor | None = field(default=None, compare=False, repr=False)

    @property
    def threshold(self) -> int:
        """An element is dropped when its 16 random bits are below this."""
        return round(self.p * 65536)

    @property
    def scale(self) -> float:
        """Factor of kept elements: one over the exact probability of being kept, so the expectation is exact."""
        return 65536 / (65536 - self.threshold) if self.threshold < 65536 else 0.0


@dataclass(frozen=True)
class DropoutKey:
    """Names the random numbers of one forward pass.

    Args:
        seed: 64 bits, the run's seed.
        offset: 32 bits, the number of the forward pass (a trainer uses its micro-step).
        state: the two in device memory, for a forward pass that is replayed (`Dropout`).
    """

    seed: int | None
    offset: int | None = 0
    state: Tensor | None = field(default=None, compare=False, repr=False)

    def site(self, p: float, site: int) -> Dropout | None:
        """The dropout of one place in the model, or None where nothing is dropped.

        Raises:
            InputError: p is outside 0..1.
        """
        if not 0.0 <= p <= 1.0:
            raise InputError(f"a dropout probability must be between 0 and 1, got {p}")
        return Dropout(p, self.seed, self.offset, site, self.state) if p > 0.0 else None


class _DrawnLater(DropoutKey):
    """Drawn by the first dropout that drops anything: vmap refuses a draw, and torch's dropout at rate 0 makes none."""

    def site(self, p: float, site: int) -> Dropout | None:
        if p > 0.0 and self.state is None:
            object.__setattr__(self, "state", _draw_state())
        return super().site(p, site)


def _draw_state() -> Tensor:
    """What `draw` draws, in memory: to torch that sees into a pass it is no number."""
    seed = torch.randint(1 << 62, (1,), dtype=torch.int64, device="cpu")
    return torch.cat([seed, torch.zeros_like(seed)])


_current: ContextVar[DropoutKey | None] = ContextVar("fastbert_dropout_key", default=None)


def draw() -> DropoutKey:
    """A fresh key from torch's default CPU generator, so that ``torch.manual_seed`` governs it."""
    return DropoutKey(int(torch.randint(1 << 62, (), dtype=torch.int64, device="cpu")))


def current() -> DropoutKey:
    """The key that `use` set, or a fresh one.

    Under `torch.compile` seed and offset come out of an op, so that a compiled pass draws anew whenever it runs: every
    implementation of a dropout reads them from memory where they are not numbers. So they do where torch sees into the
    pass (`transforms`): a program that is exported draws, and every example under vmap may draw for itself.
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


# The argument tells calls apart: two of equal arguments would be one to torch's compiler, and two forward passes drop
# the same elements. The tag says that numbers are drawn, so that what is recomputed for backward draws them again.
_library = torch.library.Library("fastbert", "FRAGMENT")
_library.define(
    "dropout_state(Tensor call) -> Tensor", tags=(torch.Tag.pt2_compliant_tag, torch.Tag.nondeterministic_seeded)
)
_library.impl("dropout_state", _dropout_state, "CompositeExplicitAutograd")
torch.library.register_fake("fastbert::dropout_state", _dropout_state_fake, lib=_library)


@contextmanager
def use(key: DropoutKey) -> Iterator[None]:
    """Makes every forward pass inside draw from this key."""
    token = _current.set(key)
    try:
        yield
    finally:
        _current.reset(token)
