"""The list of planted bugs fits the sources: a run of it takes minutes, and would stop at the first that does not."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def _bugs():
    spec = importlib.util.spec_from_file_location("native_planted_bugs", Path(__file__).with_name("planted_bugs.py"))
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.BUGS


@pytest.mark.parametrize("bug", _bugs(), ids=lambda bug: bug.what)
def test_a_bug_has_its_place(bug):
    for level in ("avx512", "avx2", "scalar") if "{level}" in bug.source else ("",):
        path = bug.path(ROOT, level)
        assert bug.planted(path.read_text()) is not None, f"{path.name} has no {bug.old!r} any more"
    assert bug.new != bug.old
    assert not bug.compiled or (ROOT / "csrc" / "cpu" / bug.compiled).exists()
    assert (ROOT / bug.tests).exists()
