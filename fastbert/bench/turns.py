"""Measurements that take turns, so that a machine that slows down or warms up favours none of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TypeVar

Result = TypeVar("Result")


def in_turn(measures: Mapping[str, Callable[[], Result]], rounds: int, warm: int = 0) -> dict[str, list[Result]]:
    """What each measurement found in each round.

    Every round takes all of them, one after the other; every other round in the opposite order.

    Args:
        measures: by name, in the order of the first round.
        warm: rounds before those that count.
    """
    found: dict[str, list[Result]] = {name: [] for name in measures}
    for number in range(warm + rounds):
        for name in reversed(measures) if number % 2 else measures:
            result = measures[name]()
            if number >= warm:
                found[name].append(result)
    return found


def seconds(function: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of a call."""
    start = clock()
    function()
    return clock() - start


def timed_in_turn(
    functions: Mapping[str, Callable[[], object]],
    rounds: int,
    warm: int = 0,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """`in_turn` of the seconds that functions take."""
    measures = {name: lambda function=function: seconds(function, clock) for name, function in functions.items()}
    return in_turn(measures, rounds, warm)
