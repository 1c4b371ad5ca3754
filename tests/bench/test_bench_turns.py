"""Who is measured when."""

from pathlib import Path

import pytest

from fastbert.bench import data, turns


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


def test_ways_of_tokenising_take_turns(monkeypatch):
    calls, said = [], []

    def measure(what, *_):
        calls.append(what)
        return {"seconds": 1.0 + len(calls)}

    monkeypatch.setattr(data, "measure", measure)
    rows = data.compare(Path("text"), 10_000_000, Path("vocab.txt"), 1, 2, said.append)
    names = ["encode_batch", "encode_batch_fast", "prepare"]
    assert calls == [*names, *reversed(names)]
    assert rows[0]["mb_per_s"] == pytest.approx((10 / 2 + 10 / 7) / 2)
    assert said[0] == "encode_batch 5.00 MB/s"


def test_memory_is_of_a_tenth_of_the_text_and_of_all(monkeypatch, tmp_path):
    whole, sizes = tmp_path / "whole.txt", []
    whole.write_text("A line of text.\n\n" * 294 + "So.")
    assert whole.stat().st_size == 5_001

    def measure(what, corpus, _vocab, threads, shard_tokens):
        sizes.append((what, corpus.stat().st_size, threads))
        return {"peak_mb": [corpus.stat().st_size, 1.0]}

    monkeypatch.setattr(data, "measure", measure)
    rows = data._compare_memory(whole, 5_001, Path("vocab.txt"), 2, print)
    assert sizes == [("prepare", pytest.approx(500, abs=20), 2), ("prepare", 5_001, 2)]
    assert [(row["mb"], row["peak_mb"]) for row in rows] == [(size / 1e6, size) for _, size, _ in sizes]
