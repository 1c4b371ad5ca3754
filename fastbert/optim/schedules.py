"""Learning-rate schedules: the factor on the peak rate as a pure function of the progress of training.

``progress`` and ``warmup`` are shares of the training, from 0 to 1, whether it is measured in steps or in time. All
schedules rise linearly during the warm-up. They raise InputError if ``warmup`` is not a share (but a number of steps).
"""

from __future__ import annotations

from collections.abc import Callable

from ..errors import InputError


def _rise(progress: float, warmup: float) -> float | None:
    if not 0 <= warmup <= 1:  # probably a number of steps, with which the rate would hardly rise at all
        raise InputError(f"warmup must be a share of the training, from 0 to 1, got {warmup}")
    return progress / warmup if progress < warmup else None


def linear(progress: float, warmup: float = 0.0) -> float:
    """Rises to 1 in the warm-up, then falls linearly to 0 (Devlin et al. 2019, appendix A.2)."""
    rise = _rise(progress, warmup)
    return rise if rise is not None else max(1.0 - progress, 0.0) / (1.0 - warmup) if warmup < 1.0 else 1.0


def poly(progress: float, warmup: float = 0.0, power: float = 0.5, offset: bool = False) -> float:
    """Falls as (1 - progress) ** power after the warm-up; there is a jump between the two, as in NVIDIA's LAMB recipe.

    With ``offset``, progress is measured from the end of the warm-up, and the rate falls from its peak without a jump.
    """
    rise = _rise(progress, warmup)
    if rise is not None:
        return rise
    left = max(1.0 - progress, 0.0)
    return (left / (1.0 - warmup) if offset and warmup < 1.0 else left) ** power


def constant(progress: float, warmup: float = 0.0) -> float:
    """Rises to 1 in the warm-up, and stays there."""
    rise = _rise(progress, warmup)
    return rise if rise is not None else 1.0


_BY_NAME: dict[str, Callable[[float, float], float]] = {"linear": linear, "poly": poly, "constant": constant}


def by_name(name: str) -> Callable[[float, float], float]:
    """The schedule of that name. Raises InputError for an unknown one."""
    if name not in _BY_NAME:
        raise InputError(f"a schedule must be one of {', '.join(_BY_NAME)}, got {name!r}")
    return _BY_NAME[name]
