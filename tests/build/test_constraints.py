"""constraints.txt, which README's first line installs by, under the oldest Python that pyproject.toml promises."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]


def test_a_pin_that_the_oldest_python_cannot_have_does_not_bind_there():
    """pip gives up over one such pin, and nothing is installed. Asked are the pinned releases that are installed."""
    requirements = pytest.importorskip("packaging.requirements")
    specifiers = pytest.importorskip("packaging.specifiers")
    (oldest,) = re.findall(r'^requires-python = ">=(.+)"', (REPO / "pyproject.toml").read_text(), re.M)
    asked, wrong = 0, []
    for line in (REPO / "constraints.txt").read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        pin = requirements.Requirement(line)
        if pin.marker and not pin.marker.evaluate({"python_version": oldest, "python_full_version": f"{oldest}.0"}):
            continue
        try:
            installed = metadata.distribution(pin.name)
        except metadata.PackageNotFoundError:
            continue
        if pin.specifier.contains(installed.version, prereleases=True):
            asked += 1
            needs = installed.metadata["Requires-Python"] or ""
            if not specifiers.SpecifierSet(needs).contains(f"{oldest}.99"):
                wrong.append(f"{line} needs Python {needs}")
    assert not wrong
    if not asked:
        pytest.skip("no release of constraints.txt is installed")
