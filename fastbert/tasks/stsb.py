"""STS-B, the Semantic Textual Similarity Benchmark: how similar in meaning are two sentences, from 0 to 5?"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Sequence

from .bad_rows import called
from .base import Row
from .regression import Regression

_log = logging.getLogger("fastbert")

MANY = 10
"""Among this many rows, some have more than 1, if the scores are from 0 to 5."""


class STSB(Regression):
    """GLUE's files have a header, with ``score`` last; the benchmark's own have none, are tab-separated although they
    are called .csv, and some of their rows have further columns with notes on licences."""

    name = "stsb"
    submission = "STS-B.tsv"
    text_columns = ("sentence1", "sentence2")
    similarity = True
    label_column = "score"
    source_columns = ("genre", "filename", "year")  # KorSTS has these, and an id that numbers rows of a source
    bare_columns = ("genre", "filename", "year", "old_index", "score", "sentence1", "sentence2")
    extra_columns = True
    low, high = 0.0, 5.0

    def is_bare(self, fields: Sequence[str]) -> bool:
        """Whether ``year`` begins with a year (2012test, 2013): rows of GLUE's files have at least as many columns."""
        return re.match("[0-9]{4}", fields[self.bare_columns.index("year")].strip()) is not None

    def read(self, path: str | os.PathLike) -> list[Row]:
        """Warns of scores from 0 to 1, as in sentence-transformers' export: they are valid scores from 0 to 5 too."""
        rows = super().read(path)
        scores = [row.label for row in rows if row.label is not None]
        if len(scores) >= MANY and max(scores) <= 1 and any(0 < score < 1 for score in scores):
            _log.warning(
                "%s: expected scores from 0 to 5, got %d from %g to %g: multiply scores from 0 to 1 by 5",
                called(path),
                len(scores),
                min(scores),
                max(scores),
            )
        return rows
