"""Fixtures of the doors."""

from __future__ import annotations

import importlib

import pytest


@pytest.fixture
def only_ours(monkeypatch):
    """Fails the test where transformers' attention runs in a model that is patched."""

    def run_by_transformers(self, *args, **kwargs):
        raise AssertionError("transformers' own attention was called")

    def forbid(module="bert", names=("BertSelfAttention",)):
        room = importlib.import_module(f"transformers.models.{module}.modeling_{module}")
        for name in names:
            monkeypatch.setattr(getattr(room, name), "forward", run_by_transformers)

    return forbid
