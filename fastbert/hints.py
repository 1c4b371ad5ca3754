"""Ends of an error's sentence, where what was named is likely to be something else than was meant."""

from __future__ import annotations

import os
from pathlib import Path


def download_hint(path: str | os.PathLike) -> str:
    """The end of an error's sentence where the model named is not on this machine: a hub's name, most likely."""
    if Path(path).exists():
        return ""
    return "; models are not downloaded: `hf download NAME --local-dir DIR` fetches one from the hub, then give DIR"


def run_hint(directory: str | os.PathLike) -> str:
    """The end of an error's sentence where a run's directory was named in place of its model's."""
    model = Path(directory) / "model"
    return f"; the model of this run is {model}" if (model / "config.json").is_file() else ""


def adapter_hint(directory: str | os.PathLike) -> str:
    """The end of an error's sentence where a directory holds a PEFT adapter, weights that belong to another model."""
    if not (Path(directory) / "adapter_config.json").is_file():
        return ""
    return (
        "; it holds a PEFT adapter: load it onto its model with peft, and save what `merge_and_unload()` gives with "
        "`save_pretrained`"
    )
