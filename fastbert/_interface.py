"""What an extension and the Python code that calls it must have in common; imports nothing, for setup.py's sake."""

from __future__ import annotations

import hashlib
from pathlib import Path


def interface(csrc: Path) -> str:
    """The hash of all files of the C++ sources that say what the extension's functions take: their bindings, and the
    structures that these fill. "" where there are no sources, as beside an installed package."""
    files = sorted([*csrc.glob("bindings*"), *csrc.glob("include/*")])
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16] if files else ""
