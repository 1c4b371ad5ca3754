"""MNLI, Multi-Genre Natural Language Inference: does the first sentence entail or contradict the second?"""

from __future__ import annotations

import os
from pathlib import Path

from .classification import Classification


class MNLI(Classification):
    """Files of 9 (test), 12 (training) or 16 (dev) columns, of which sentence1, sentence2 and gold_label are read; also
    GLUE's diagnostic set. Matched and mismatched genres have files of their own."""

    name = "mnli"
    submission = "MNLI-m.tsv"
    labels = ("entailment", "neutral", "contradiction")
    text_columns = ("sentence1", "sentence2")
    label_column = "gold_label"

    def submission_name(self, data: str | os.PathLike) -> str:
        name = Path(data).name.lower()
        if "mismatched" in name:
            return "MNLI-mm.tsv"
        return "AX.tsv" if "diagnostic" in name or name == "ax.tsv" else self.submission
