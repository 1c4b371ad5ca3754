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
        where, _, file = module.rpartition(".")
        room = importlib.import_module(f"transformers.models.{where or file}.modeling_{file}")
        for name in names:
            # Not its forward: a pass of ours that finds another one there leaves it to transformers.
            monkeypatch.setattr(getattr(room, name), "__call__", run_by_transformers)

    return forbid


@pytest.fixture
def passes(monkeypatch):
    """The packed passes that patched models of transformers make from now on; a compiler does not look past it."""
    from fastbert.interop.patch_pass import Pass

    made, run = [], Pass.run

    def noted(self):
        made.append(self)
        return run(self)

    monkeypatch.setattr(Pass, "run", noted)
    return made
