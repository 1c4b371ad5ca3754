"""A directory of a tiny study's files, and the cache and results of the study once it is done."""

from __future__ import annotations

from pathlib import Path

import pytest
import study_runs


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A directory with the files of the tasks, the corpus and tiny.yaml."""
    directory = study_runs.write_files(tmp_path_factory.mktemp("study"))
    (directory / "tiny.yaml").write_text(study_runs.TINY)
    return directory


@pytest.fixture(scope="module")
def done(place, tmp_path_factory) -> tuple[Path, dict]:
    """The cache of a finished study and its results."""
    cache = tmp_path_factory.mktemp("cache")
    found, lines = study_runs.complete(study_runs.read(place), cache)
    # Two rows share their pre-training: two models and three cells, for two seeds.
    assert len(lines) == 2 * 2 + 2 * 3
    return cache, found
