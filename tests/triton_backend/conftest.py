"""Tests that run in Triton's interpreter, which is what makes them slow; every launch there is watched."""

from __future__ import annotations

import os

import interpreter
import memory_watch
import pytest

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if IS_INTERPRETED:
    interpreter.quicken()


@pytest.fixture(autouse=True)
def watched(request, monkeypatch):
    """Of kernels that race on purpose see test_triton_memory.py."""
    if not IS_INTERPRETED or request.path.name == "test_triton_memory.py":
        yield
        return
    found = memory_watch.watch(monkeypatch)
    yield
    assert not any(found.values()), found
