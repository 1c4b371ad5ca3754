"""The model of a run, in RUN/model: replaced as a whole, so that the directory always holds one model."""

from __future__ import annotations

import shutil
from pathlib import Path

from ..errors import CheckpointError
from ..files import put_in_place
from ..models.pretrained import PreTrainedModel

_NAME, _FRESH, _OLD = "model", "model.new", "model.old"


def write_model(model: PreTrainedModel, run_dir: Path) -> None:
    """Writes RUN/model anew, with the weights that the model has now.

    Raises:
        CheckpointError: it cannot be written; the model that was there stays.
    """
    target, fresh, old = (run_dir / name for name in (_NAME, _FRESH, _OLD))
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        model.save_pretrained(fresh)
        shutil.rmtree(old, ignore_errors=True)
        put_in_place(fresh, target, old)
    except OSError as error:  # of whatever step: `save_errors` is about them all
        raise CheckpointError(f"{target}: the model could not be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)


def has_model(run_dir: Path) -> bool:
    """Whether there is a RUN/model, which is put back where a crash came between the two renames of `write_model`."""
    target, old = run_dir / _NAME, run_dir / _OLD
    if old.exists() and not target.exists():
        old.rename(target)
    return target.exists()
