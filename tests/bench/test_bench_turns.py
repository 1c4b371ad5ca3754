"""Who is measured when."""

import pytest

from fastbert.bench import turns


def test_rounds_take_all_in_turn_and_every_other_one_backwards():
    calls = []

    def measure(name):
        calls.append(name)
        return f"{name}{len(calls)}"

    found = turns.in_turn({name: lambda name=name: measure(name) for name in "abc"}, rounds=2, warm=1)
    assert calls == [*"abc", *"cba", *"abc"]
    assert found == {"a": ["a6", "a7"], "b": ["b5", "b8"], "c": ["c4", "c9"]}


def test_seconds_are_the_clocks():
    ticks = iter((1.0, 1.5, 10.0, 12.0))
    found = turns.timed_in_turn({"a": lambda: None, "b": lambda: None}, rounds=1, clock=lambda: next(ticks))
    assert found == {"a": [0.5], "b": [2.0]}
    with pytest.raises(ZeroDivisionError):
        turns.seconds(lambda: 1 / 0)
