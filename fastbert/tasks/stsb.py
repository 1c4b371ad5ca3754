"""STS-B, the Semantic Textual Similarity Benchmark: how alike in meaning are two sentences, from 0 to 5?"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Sequence

from .bad_rows import called
from .base import Row
from .regression import Regression

MANY = 10
"""Rows of which some have more than 1 of 5, if these are the bounds."""


class STSB(Regression):
    """GLUE's files have a header, with ``score`` last; the benchmark's own have none, are tab-separated though named
    .csv, and some of their rows go on with notes on licences."""

    name = "stsb"
    submission = "STS-B.tsv"
    text_columns = ("sentence1", "sentence2")
    similarity = True
    label_column = "score"
    source_columns = ("genre", "filename", "year")  # KorSTS's files have such an id
    bare_columns = ("genre", "filename", "year", "old_index", "score", "sentence1", "sentence2")
    extra_columns = True
    low, high = 0.0, 5.0

    def is_bare(self, fields: Sequence[str]) -> bool:
        """Whether ``year`` is one (2012test, 2013): GLUE's rows without their header have as many columns and more."""
        return re.match("[0-9]{4}", fields[self.bare_columns.index("year")].strip()) is not None

    def read(self, path: str | os.PathLike) -> list[Row]:
        """Warns of scores that are shares of 5, as sentence-transformers' export has them: they are on the scale."""
        rows = super().read(path)
        scores = [row.label for row in rows if row.label is not None]
        if len(scores) >= MANY and max(scores) <= 1 and any(0 < score < 1 for score in scores):
            logging.getLogger("fastbert").warning(
                "%s: expected scores from 0 to 5, got %d from %g to %g: shares of 5 must be multiplied by it",
                called(path),
                len(scores),
                min(scores),
                max(scores),
            )
        return rows
