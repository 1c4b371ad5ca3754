"""The best model of a run, in RUN/model. It is replaced as a whole, so the directory always holds a complete model."""

from __future__ import annotations

from pathlib import Path

from ..errors import CheckpointError
from ..files import is_there, whole_directory
from ..models.pretrained import PreTrainedModel

_NAME = "model"


def write_model(model: PreTrainedModel, run_dir: Path) -> None:
    """Replaces RUN/model by the model with its current weights.

    Raises:
        CheckpointError: it cannot be written; the previous model is kept.
    """
    target = run_dir / _NAME
    try:
        with whole_directory(target) as fresh:
            model.save_pretrained(fresh)
    except OSError as error:  # CheckpointError for any failure to write, since that is what save_errors is about
        raise CheckpointError(f"{target}: the model could not be written: {error.strerror or error}") from error


def has_model(run_dir: Path) -> bool:
    """Whether RUN/model exists."""
    return is_there(run_dir / _NAME)
