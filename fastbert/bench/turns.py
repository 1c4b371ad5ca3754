"""Measurements that take turns, so that changes of the machine's speed favour none of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TypeVar

Result = TypeVar("Result")


def in_turn(measures: Mapping[str, Callable[[], Result]], rounds: int, warm: int = 0) -> dict[str, list[Result]]:
    """Runs all measurements in each round, one after the other; every other round in the opposite order.

    Args:
        measures: the measurements by name, in the order of the first round.
        rounds: the number of rounds that count.
        warm: the number of rounds before these.

    Returns:
        the result of each measurement in each round.
    """
    found: dict[str, list[Result]] = {name: [] for name in measures}
    for number in range(warm + rounds):
        for name in reversed(measures) if number % 2 else measures:
            result = measures[name]()
            if number >= warm:
                found[name].append(result)
    return found


def seconds(function: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """The seconds that a call takes."""
    start = clock()
    function()
    return clock() - start


def timed_in_turn(
    functions: Mapping[str, Callable[[], object]],
    rounds: int,
    warm: int = 0,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """`in_turn` for the seconds that functions take."""
    measures = {name: lambda function=function: seconds(function, clock) for name, function in functions.items()}
    return in_turn(measures, rounds, warm)
