"""Options that several commands share; importable without torch, as `--help` needs it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(kw_only=True)
class PredictOptions:
    """Options that every command has which runs a model over a file."""

    max_seqlen: int | None = None
    """Longest sequence in tokens; by default the one that the run was trained with."""
    token_budget: int = 8192
    """Tokens in a batch."""
    null_threshold: float | None = None
    """squad2: "no answer" where its odds are above this; by default the best value on the run's dev file."""
    text_columns: tuple[str, ...] | None = None
    """Tasks of texts: the column of the text, or the two columns of a pair; by default those that the run was trained
    with. In files without a header they are numbers, from 1."""
    label_column: str | None = None
    """Tasks of texts: the column of the labels, given like --text-columns."""
    skip_bad_rows: bool = False
    """Leave out rows that cannot be used, and say how many and why; without it the first ends the command."""
