"""Tests that run in Triton's interpreter, which is what makes them slow; every launch there is watched for races."""

from __future__ import annotations

import os

import interpreter
import pytest
import races

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if IS_INTERPRETED:
    interpreter.quicken()


@pytest.fixture(autouse=True)
def no_races(request, monkeypatch):
    """Of kernels that race on purpose see test_triton_races.py."""
    if not IS_INTERPRETED or request.path.name == "test_triton_races.py":
        yield
        return
    found = races.watch(monkeypatch)
    yield
    assert not any(found.values()), found
