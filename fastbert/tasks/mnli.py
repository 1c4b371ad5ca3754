"""MNLI, Multi-Genre Natural Language Inference: does the first sentence entail or contradict the second?"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..text_files import without_gz
from .base import Row
from .classification import Classification
from .hub_files import is_hub_file

# XNLI's training files, which are MultiNLI in fifteen languages, have "contradictory"; ANLI's have letters.
_LABELS = {"contradictory": "contradiction", "e": "entailment", "n": "neutral", "c": "contradiction"}


@dataclass(frozen=True)
class Diagnostic(Row):
    """A row of GLUE's diagnostic set, which is scored by Matthews' correlation (Wang et al. 2018, section 4)."""


class MNLI(Classification):
    """Files of 10 (test), 12 (training) or 16 (dev) columns, of which sentence1, sentence2 and gold_label are read;
    also GLUE's diagnostic set, recognised by its name. Matched and mismatched genres are in separate files."""

    name = "mnli"
    submission = "MNLI-m.tsv"
    labels = ("entailment", "neutral", "contradiction")
    text_columns = ("sentence1", "sentence2")
    label_column = "gold_label"

    def parse(self, text: str) -> str:
        lower = text.lower()  # SICK writes them in capitals
        label = _LABELS.get(lower, lower)
        return super().parse(label if label in self.labels else text)

    def rows(self, path: str | os.PathLike) -> Iterator[Row]:
        rows = super().rows(path)
        return (Diagnostic(row.id, row.texts, row.label) for row in rows) if _is_diagnostic(path) else rows

    def metrics_of(self, rows: Sequence[Row]) -> tuple[str, ...]:
        return ("matthews", *self.metrics) if any(isinstance(row, Diagnostic) for row in rows) else self.metrics

    def submission_name(self, data: str | os.PathLike) -> str:
        if "mismatched" in Path(data).name.lower() or _hub_set(data) == "mnli_mismatched":
            return "MNLI-mm.tsv"
        return "AX.tsv" if _is_diagnostic(data) else self.submission


def _is_diagnostic(data: str | os.PathLike) -> bool:
    return "diagnostic" in Path(data).name.lower() or "ax" in (Path(without_gz(data)).stem.lower(), _hub_set(data))


def _hub_set(data: str | os.PathLike) -> str:
    """The directory of a data-set hub's file, whose own name does not tell its set: ``ax/test-00000-of-00001.parquet``.
    Empty for other files."""
    path = Path(data)
    return path.parent.name.lower() if is_hub_file(path) else ""
