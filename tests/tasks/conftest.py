"""Fixtures of the tasks."""

from __future__ import annotations

import finetune_runs as runs
import pytest
import tiny_bert


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """A tiny BERT to fine-tune."""
    return tiny_bert.save(tmp_path_factory.mktemp("pretrained"), "BertModel")


@pytest.fixture(scope="module")
def whole(directory, tmp_path_factory):
    """The run that was left alone, and its result."""
    out = tmp_path_factory.mktemp("whole") / "run"
    return out, runs.run(directory, out)[0]
