"""Fixtures of the ops."""

from __future__ import annotations

import pytest

from fastbert import ops


@pytest.fixture
def calls(monkeypatch):
    """A 1 for each pass of an encoder that went through the one op."""
    counted = []
    true = ops.fused_encoder

    def count(*args, **kwargs):
        states = true(*args, **kwargs)
        counted.extend([1] * (states is not None))
        return states

    monkeypatch.setattr(ops, "fused_encoder", count)
    return counted
