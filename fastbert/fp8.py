"""Which scale every tensor has that goes through a product of 8-bit floats, and in which block dense layers go there.

Weights and activations are e4m3 (largest value 448), gradients e5m2 (57,344), each tensor with one scale (Micikevicius
et al., "FP8 formats for deep learning", 2022). A tensor is cast with the scale that the last steps' largest values
give ("delayed scaling"), so that whoever makes it can write its 8 bits in the same pass; what is larger than those is
clipped. In the very first step each tensor is measured before it is cast.

Scales are powers of two: multiplying by them rounds nothing, so 8 bits are lost to the cast and to nothing else. All
state is in the device's memory and is read and written there alone: a captured step replays it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
LARGEST = {E4M3: 448.0, E5M2: 57344.0}
# Steps whose largest values a scale is made of.
WINDOW = 16
# Places that the programs of a kernel share to note the largest value in, so that they do not queue for one.
LANES = 32
# Products take rows of whole 16 bytes; tables have such rows too, for entries that begin at such an address.
ALIGNMENT = 16


class Scales:
    """Scales, and the largest values that they are made of.

    Args:
        kinds: `E4M3` or `E5M2`, one a tensor.
        device: of the tensors.

    Attributes:
        scale, inverse: (n, 4) float32, of which the first column counts: what a tensor is multiplied by before its
            cast, and one over it.
        maxima: (n, LANES) int32, the bits of the largest magnitudes of this step; bits of floats above zero are ordered
            as these are, so a maximum over them does not depend on the order in which it is taken.
        history: (n, WINDOW) float32, the largest magnitudes of the last steps, the newest first.
        cold: whether no step is behind these scales; tensors are then measured before they are cast.
    """

    def __init__(self, kinds: Sequence[torch.dtype], device: torch.device) -> None:
        n = len(kinds)
        self.kinds = tuple(kinds)
        self.scale, self.inverse = (torch.ones(n, 4, device=device) for _ in range(2))
        self.maxima = torch.zeros(n, LANES, dtype=torch.int32, device=device)
        self.history = torch.zeros(n, WINDOW, device=device)
        self._limits = torch.tensor([LARGEST[kind] for kind in kinds], device=device)
        self.cold = True

    def slot(self, index: int) -> Slot:
        """The entry of one tensor."""
        return Slot(self.kinds[index], self.scale[index, :1], self.inverse[index, :1], self.maxima[index], self)

    @torch.no_grad()
    def end_step(self, over_ranks: Callable[[Tensor], object] | None = None) -> None:
        """Takes the largest values of a step into the history and makes the scales of the next; waits for nothing.

        A value that is not finite is forgotten, as its step is.

        Args:
            over_ranks: makes each of these values, (n,) float32, the largest of all ranks', in place.
        """
        newest = self.maxima.view(torch.float32).amax(1)
        newest = torch.where(newest.isfinite(), newest, 0.0)
        if over_ranks is not None:
            over_ranks(newest)
        newest = torch.where(newest > 0, newest, self.history[:, 0])  # of a tensor that the step had no use for
        self.history.copy_(torch.cat([newest[:, None], self.history[:, :-1]], 1))
        self.maxima.zero_()
        self._set()
        self.cold = False

    def _set(self) -> None:
        scale = power_of_two(self.history.amax(1), self._limits)
        self.scale[:, 0].copy_(scale)
        self.inverse[:, 0].copy_(1.0 / scale)

    @torch.no_grad()
    def restore(self, history: Tensor) -> None:
        """Goes on from the ``history`` of a run; memory that a captured step uses is kept."""
        self.history.copy_(history)
        self.maxima.zero_()
        self._set()
        self.cold = False


def power_of_two(largest: Tensor, limit: Tensor | float) -> Tensor:
    """The largest power of two that keeps ``largest`` (n,) float32 within ``limit``; 1 where it is 0."""
    ratio = (limit / largest).clamp(max=2.0**60)  # the inverse must be a normal float32, beside another one
    # Without its mantissa a float is a power of two.
    power = (ratio.view(torch.int32) & 0x7F800000).view(torch.float32)
    return torch.where(largest > 0, power, torch.ones_like(power))


@dataclass(frozen=True)
class Slot:
    """The entry of one tensor in `Scales`: what an op needs to cast it. Views of the tables, (1,), (1,), (LANES,)."""

    kind: torch.dtype
    scale: Tensor
    inverse: Tensor
    maxima: Tensor
    scales: Scales = field(repr=False)

    @torch.no_grad()
    def note(self, x: Tensor) -> None:
        """Notes the largest magnitude of a tensor that is cast, and makes the scale of it where there is none yet."""
        if not x.numel():
            return
        largest = x.abs().amax().float()[None]
        if self.scales.cold:
            scale = power_of_two(torch.where(largest.isfinite(), largest, 0.0), LARGEST[self.kind])
            self.scale.copy_(scale)
            self.inverse.copy_(1.0 / scale)
        first = self.maxima[:1]
        first.copy_(torch.maximum(first, largest.view(torch.int32)))


class Site:
    """One dense layer: the entries of its input, weight and gradient, and the weight's 8 bits, cast once a step.

    Args:
        weight: (N, K).
        x, own, grad: entries of the input, of the weight, and of the gradient of what the layer gives.
    """

    def __init__(self, weight: nn.Parameter, x: Slot, own: Slot, grad: Slot) -> None:
        self.weight, self.x, self.own, self.grad = weight, x, own, grad
        self._copies: tuple[Tensor, Tensor] | None = None
        self._version = -1

    def copies(self, quantize: Callable) -> tuple[Tensor, Tensor]:
        """The weight (N, K) and its transpose (K, N) in 8 bits, always in the same memory.

        Args:
            quantize: (x, slot, out=) -> casts into the two tensors of out, which are made where it is None.
        """
        weight = self.weight
        if self._copies is None or self._copies[0].device != weight.device:
            self._copies, self._version = quantize(weight.detach(), self.own, None), weight._version
        elif self._version != weight._version:
            quantize(weight.detach(), self.own, self._copies)
            torch.autograd.graph.increment_version(list(self._copies))  # what backward still needs would be found out
            self._version = weight._version
        return self._copies


class Policy:
    """Which dense layers of a model multiply in 8 bits, and which LayerNorms write their output in 8 bits too.

    Args:
        scales: of all tensors.
        sites: the dense layers.
        outputs: (weight of a LayerNorm, entry of its output).
    """

    def __init__(self, scales: Scales, sites: Sequence[Site], outputs: Sequence[tuple[nn.Parameter, Slot]]) -> None:
        self.scales = scales
        self._sites = {id(site.weight): site for site in sites}
        self._outputs = {id(weight): (weight, slot) for weight, slot in outputs}

    def __len__(self) -> int:
        return len(self._sites)

    def site(self, weight: Tensor) -> Site | None:
        """The entry of a dense layer, by its weight; None where it multiplies as always."""
        return self._sites.get(id(weight))

    def output(self, weight: Tensor) -> Slot | None:
        """Where a LayerNorm's output in 8 bits is scaled, by its weight; None where it writes none."""
        return self._outputs.get(id(weight), (None, None))[1]


_current: ContextVar[Policy | None] = ContextVar("fastbert_fp8_policy", default=None)


def _active() -> Policy | None:
    """The policy in force; nowhere but in training, where the next step makes good what a cast lost."""
    return None if torch.compiler.is_compiling() or not torch.is_grad_enabled() else _current.get()


def is_in_use() -> bool:
    """Whether some dense layers multiply in 8 bits now."""
    return _active() is not None


def site(weight: Tensor) -> Site | None:
    """The place of a dense layer that multiplies in 8 bits, None for another."""
    policy = _active()
    return None if policy is None else policy.site(weight)


def output(weight: Tensor) -> Slot | None:
    """The entry that a LayerNorm of this weight casts its output by, None where nobody reads it in 8 bits."""
    policy = _active()
    return None if policy is None else policy.output(weight)


@contextmanager
def use(policy: Policy | None) -> Iterator[None]:
    """Makes the dense layers of a policy multiply in 8 bits inside the block."""
    token = _current.set(policy)
    try:
        yield
    finally:
        _current.reset(token)


def current() -> Policy | None:
    """The policy of the innermost `use` block, for another thread to take over."""
    return _current.get()


def attach(x: Tensor, data: Tensor) -> None:
    """Leaves with x its 8 bits, for those who multiply it."""
    x.fastbert_fp8 = (x._version, data)


def attached(x: Tensor) -> Tensor | None:
    """The 8 bits that `attach` left, if x is still what it was."""
    version, data = getattr(x, "fastbert_fp8", (None, None))
    return data if version == x._version else None
