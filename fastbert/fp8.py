"""Scales of the tensors in products of 8-bit floats, and the context in which dense layers use such products.

Weights and activations are e4m3 (largest value 448), gradients e5m2 (57,344), each tensor with one scale (Micikevicius
et al., "FP8 formats for deep learning", 2022). A tensor is cast with a scale computed from the largest values of the
last steps ("delayed scaling"), so that the kernel that computes it can also write its 8-bit cast; larger values are
clipped. In the very first step each tensor is measured before it is cast.

Scales are powers of two, so multiplying by them does not round. All state is in device memory, where it is read and
written, so that a step captured in a CUDA graph can be replayed.
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
# The number of past steps whose largest values determine a scale.
WINDOW = 16
# The number of addresses in which the programs of a kernel record the largest value, to avoid contention for one.
LANES = 32
# In bytes: products need rows of a multiple of it. The tables have such rows too, so that entries are aligned.
ALIGNMENT = 16


class Scales:
    """The scales of n tensors, and the largest values from which they are computed.

    Args:
        kinds: `E4M3` or `E5M2` for each tensor.
        device: the tensors' device.

    Attributes:
        scale, inverse: (n, 4) float32, of which only the first column is used: the factor on a tensor before its cast,
            and its inverse.
        maxima: (n, LANES) int32, the bits of the largest magnitudes of this step. Positive floats are ordered like
            their bits, so that integer maxima give the same result in any order.
        history: (n, WINDOW) float32, the largest magnitudes of the last steps, the newest first.
        cold: whether there was no step yet; tensors are then measured before they are cast.
        changes: how many times all scales were computed.
    """

    def __init__(self, kinds: Sequence[torch.dtype], device: torch.device) -> None:
        n = len(kinds)
        self.kinds = tuple(kinds)
        self.scale, self.inverse = (torch.ones(n, 4, device=device) for _ in range(2))
        self.maxima = torch.zeros(n, LANES, dtype=torch.int32, device=device)
        self.history = torch.zeros(n, WINDOW, device=device)
        self._limits = torch.tensor([LARGEST[kind] for kind in kinds], device=device)
        self.cold, self.changes = True, 0

    def slot(self, index: int) -> Slot:
        """The entry of one tensor."""
        return Slot(self.kinds[index], self.scale[index, :1], self.inverse[index, :1], self.maxima[index], self)

    @torch.no_grad()
    def end_step(self, over_ranks: Callable[[Tensor], object] | None = None) -> None:
        """Moves the largest values of a step into the history and computes the scales of the next; waits for nothing.

        Values that are not finite are dropped, like the step that they come from.

        Args:
            over_ranks: replaces the values (n,) float32 by their maxima over the ranks, in place; None for one rank.
        """
        newest = self.maxima.view(torch.float32).amax(1)
        newest = torch.where(newest.isfinite(), newest, 0.0)
        if over_ranks is not None:
            over_ranks(newest)
        newest = torch.where(newest > 0, newest, self.history[:, 0])  # 0 for a tensor that was not used in the step
        self.history.copy_(torch.cat([newest[:, None], self.history[:, :-1]], 1))
        self.maxima.zero_()
        self._set()
        self.cold = False

    def _set(self) -> None:
        self.changes += 1
        scale = power_of_two(self.history.amax(1), self._limits)
        self.scale[:, 0].copy_(scale)
        self.inverse[:, 0].copy_(1.0 / scale)

    @torch.no_grad()
    def restore(self, history: Tensor) -> None:
        """Continues from a run's ``history``, in place, since a captured step may use this memory."""
        self.history.copy_(history)
        self.maxima.zero_()
        self._set()
        self.cold = False


def power_of_two(largest: Tensor, limit: Tensor | float) -> Tensor:
    """The largest power of two that keeps ``largest`` (n,) float32 within ``limit``; 1 where it is 0."""
    ratio = (limit / largest).clamp(max=2.0**60)  # the product of two inverses must be a normal float32
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
        """Records the largest magnitude of a tensor that is to be cast; in the first step, also sets its scale."""
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
    """One dense layer: the entries of its input, weight and gradient, and the weight's 8-bit cast, made once a step.

    Args:
        weight: (N, K).
        x, own, grad: the entries of the input, of the weight, and of the output's gradient.
    """

    def __init__(self, weight: nn.Parameter, x: Slot, own: Slot, grad: Slot) -> None:
        self.weight, self.x, self.own, self.grad = weight, x, own, grad
        self._copies: tuple[Tensor, Tensor] | None = None
        self._made_from: tuple[int, ...] | None = None  # the weight's address and version, and which scales

    def copies(self, quantize: Callable) -> tuple[Tensor, Tensor]:
        """The 8-bit casts of the weight (N, K) and of its transpose (K, N), always in the same memory.

        Args:
            quantize: called with the weight, its slot, and the two tensors to write, or None for new ones, which it
                returns.
        """
        weight = self.weight
        # In a step that is left out the weight stays, but its scale may change.
        now = weight.data_ptr(), weight._version, self.own.scales.changes
        if self._copies is None or self._copies[0].device != weight.device:
            self._copies = quantize(weight.detach(), self.own, None)
        elif self._made_from != now:
            quantize(weight.detach(), self.own, self._copies)
            torch.autograd.graph.increment_version(list(self._copies))  # autograd detects it if backward needs the old
        self._made_from = now
        return self._copies


class Policy:
    """Which dense layers of a model multiply in 8 bits, and which LayerNorms write their output in 8 bits too.

    Args:
        scales: those of all tensors.
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
        """The entry of a dense layer, by its weight; None if it does not multiply in 8 bits."""
        return self._sites.get(id(weight))

    def output(self, weight: Tensor) -> Slot | None:
        """The entry for a LayerNorm's output, by its weight; None if it writes no 8-bit output."""
        return self._outputs.get(id(weight), (None, None))[1]


_current: ContextVar[Policy | None] = ContextVar("fastbert_fp8_policy", default=None)


def _active() -> Policy | None:
    """The policy in force; None without gradients (outside training no later step corrects a cast's errors) and in a
    compiler's graph."""
    return None if torch.compiler.is_compiling() or not torch.is_grad_enabled() else _current.get()


def is_in_use() -> bool:
    """Whether some dense layers multiply in 8 bits now."""
    return _active() is not None


def site(weight: Tensor) -> Site | None:
    """The entry of a dense layer that multiplies in 8 bits now, by its weight; None for another."""
    policy = _active()
    return None if policy is None else policy.site(weight)


def output(weight: Tensor) -> Slot | None:
    """The entry for casting the output of a LayerNorm with this weight; None if nothing reads it in 8 bits."""
    policy = _active()
    return None if policy is None else policy.output(weight)


@contextmanager
def use(policy: Policy | None) -> Iterator[None]:
    """Makes the dense layers of a policy multiply in 8 bits inside the block; None turns it off."""
    token = _current.set(policy)
    try:
        yield
    finally:
        _current.reset(token)


def current() -> Policy | None:
    """The policy of the innermost `use` block, to be passed to another thread."""
    return _current.get()


def attach(x: Tensor, data: Tensor) -> None:
    """Attaches to x its 8-bit cast, for the products that read x."""
    x.fastbert_fp8 = (x._version, data)


def attached(x: Tensor) -> Tensor | None:
    """The cast that `attach` attached, or None if there is none or x was changed since."""
    version, data = getattr(x, "fastbert_fp8", (None, None))
    return data if version == x._version else None
