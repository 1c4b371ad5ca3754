"""Files that belong to a data file and lie beside it, found by its name."""

from __future__ import annotations

import os
from pathlib import Path

from ..text_files import without_gz


def labels(path: str | os.PathLike) -> Path:
    """train-labels.lst of train.jsonl, as PIQA, SocialIQA and alphaNLI have it: a label a line."""
    plain = Path(without_gz(path))
    return plain.with_name(f"{plain.stem}-labels.lst")


def answers(path: str | os.PathLike) -> Path:
    """mc160.dev.ans of mc160.dev.tsv, as MCTest has it: the letters of the right answers."""
    return Path(without_gz(path)).with_suffix(".ans")


def tag_names(path: str | os.PathLike) -> Path:
    """label.json of any file in its directory, as tner's data sets have it: the numbers of tags by name."""
    return Path(path).with_name("label.json")


def existing(path: str | os.PathLike) -> list[Path]:
    """Those of them that are there, whether or not a task reads them."""
    return [file for file in (labels(path), answers(path), tag_names(path)) if file.is_file()]
