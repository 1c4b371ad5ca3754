"""A dropout key that keeps which places have asked it for numbers."""

from __future__ import annotations

from dataclasses import dataclass, field

from fastbert import rng


@dataclass(frozen=True)
class Watched(rng.DropoutKey):
    """``asked``: the share that each place drops, and the place."""

    asked: list[tuple[float, int]] = field(default_factory=list)

    def site(self, p, site):
        self.asked.append((p, site))
        return super().site(p, site)
