"""RELIABILITY 9: whatever is in a file, what reads it ends in one of our sentences or reads it; nothing grows."""

from __future__ import annotations

import fuzz
import pytest


@pytest.mark.parametrize("cases", [10_000, pytest.param(1_000_000, marks=[pytest.mark.soak, pytest.mark.timeout(0)])])
def test_broken_files_are_refused_in_one_sentence(cases):
    result = fuzz.run(cases, report=print)
    assert not result.get("failure"), result["failure"]
    assert result["refused"] + result["accepted"] == cases
    # Most of what is broken is found; what is not has lost nothing that is read (a bit of a weight, a blank).
    assert result["refused"] > 0.5 * cases
    assert result["accepted"] > 0.01 * cases, "nothing gets as far as the reader's inside"
    assert result["growth_mib"] < 100


def test_the_fuzzer_finds_what_it_looks_for(monkeypatch):
    """A reader that lets another error out is caught with its case, and so is one that dies."""
    import faulthandler
    import os
    import signal

    def unguarded(_):
        raise KeyError("weight_map")

    monkeypatch.setattr(fuzz, "read_state_dict", lambda d: {})
    real = fuzz.targets

    def broken_reader(home, read):
        first, *rest = real(home)
        state = {"calls": 0}

        def once(_=None):
            state["calls"] += 1
            if state["calls"] > 1:
                read(_)

        return [fuzz.Target(first.name, first.file, first.good, once), *rest]

    monkeypatch.setattr(fuzz, "targets", lambda home: broken_reader(home, unguarded))
    assert "KeyError: 'weight_map'" in fuzz.run(50)["failure"]

    def crash(_):
        faulthandler.disable()  # else pytest's tells the whole log of a crash that is meant
        os.kill(os.getpid(), signal.SIGSEGV)

    monkeypatch.setattr(fuzz, "targets", lambda home: broken_reader(home, crash))
    assert "the process died" in fuzz.run(50)["failure"]
