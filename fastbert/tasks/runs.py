"""Finding the model in a run directory, and what the run says of itself."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import InputError


def model_directory(path: str | os.PathLike) -> Path:
    """The Hugging Face directory that a path means: itself, or the ``model/`` of a run directory.

    Raises:
        InputError: there is no such directory, or no config.json in it.
    """
    path = Path(path)
    for directory in (path / "model", path):
        if (directory / "config.json").is_file():
            return directory
    what = "a directory without config.json" if path.is_dir() else "nothing of that name"
    raise InputError(f"{path}: expected a model directory with config.json, or a run directory, got {what}")


def run_config(path: str | os.PathLike) -> dict:
    """The config.yaml of a run directory; empty for a plain model directory."""
    import yaml

    file = Path(path) / "config.yaml"
    if not file.is_file():
        return {}
    with open(file, encoding="utf-8") as stream:
        value = yaml.safe_load(stream)
    if not isinstance(value, dict):
        raise InputError(f"{file}: expected a mapping, got {type(value).__name__}")
    return value
