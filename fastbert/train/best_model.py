"""The model of a run, in RUN/model: replaced as a whole, so that the directory always holds one model."""

from __future__ import annotations

from pathlib import Path

from ..errors import CheckpointError
from ..files import is_there, whole_directory
from ..models.pretrained import PreTrainedModel

_NAME = "model"


def write_model(model: PreTrainedModel, run_dir: Path) -> None:
    """Writes RUN/model anew, with the weights that the model has now.

    Raises:
        CheckpointError: it cannot be written; the model that was there stays.
    """
    target = run_dir / _NAME
    try:
        with whole_directory(target) as fresh:
            model.save_pretrained(fresh)
    except OSError as error:  # of whatever step: `save_errors` is about them all
        raise CheckpointError(f"{target}: the model could not be written: {error.strerror or error}") from error


def has_model(run_dir: Path) -> bool:
    """Whether there is a RUN/model."""
    return is_there(run_dir / _NAME)
