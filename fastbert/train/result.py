"""What a pre-training run returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class PretrainResult:
    """The result of a pre-training run.

    Args:
        run_dir, model_dir: the run directory, and the model with the least held-out loss in it.
        steps, seconds, tokens: totals of the whole run, across resumes.
        history: the rows of metrics.jsonl.
        heldout: the held-out figures of the model in model_dir; empty without held-out documents.
        interrupted: the name of the signal that ended the run early, or None.
        paths: what was written.
        processor_seconds: processor time of all threads of this process during ``seconds``.
        late_signal: the name of a signal that came after the last step, so that the run is complete, or None.
    """

    run_dir: Path
    model_dir: Path
    steps: int
    seconds: float
    tokens: int
    history: list[dict]
    heldout: dict = field(default_factory=dict)
    interrupted: str | None = None
    paths: list[Path] = field(default_factory=list)
    processor_seconds: float = 0.0
    late_signal: str | None = None
