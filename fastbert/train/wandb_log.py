"""A run's rows on Weights & Biases, if the user asks for it."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from ..errors import CheckpointError, InputError
from ..files import write_whole


def check_installed(project: str | None) -> None:
    """Raises InputError if rows are to be sent to a project and wandb is not installed."""
    if project is None:
        return
    try:
        import wandb  # noqa: F401
    except ImportError:
        raise InputError("--wandb needs the package wandb (pip install wandb), found none") from None


class WandbLog:
    """Sends rows to a project, as values ``kind/name`` against the step, the names that TensorBoard gets too.

    Args:
        project: the project's name; None sends nothing and does not need wandb.
        run_dir: the run's directory, whose name becomes the run's name; wandb's own files go into it.
        config: the options of the run.
        name: the run's name, if it is another.

    Raises:
        InputError: wandb is not installed.
        CheckpointError: the run's id cannot be written.
    """

    def __init__(self, project: str | None, run_dir: str | os.PathLike, config: dict, name: str | None = None) -> None:
        self._run = None
        check_installed(project)
        if project is None:
            return
        import wandb

        directory = Path(run_dir).resolve()
        # The id is kept in the run directory, so that a resumed run continues its own curves.
        run = {"name": name or directory.name, "id": _id(directory), "resume": "allow"}
        self._run = wandb.init(project=project, dir=str(directory), config=config, **run)

    def log(self, kind: str, step: int, values: dict) -> None:
        """Sends the numbers of a row."""
        if self._run is not None:
            numbers = {f"{kind}/{name}": value for name, value in values.items() if isinstance(value, int | float)}
            self._run.log(numbers, step=step)

    def close(self) -> None:
        """Ends the run on Weights & Biases."""
        if self._run is not None:
            self._run.finish()


def _id(directory: Path) -> str:
    """The run's id on Weights & Biases, the same for every process that continues the run."""
    path = directory / "wandb-id"
    if not path.exists():
        write_whole(path, uuid.uuid4().hex[:16] + "\n", CheckpointError)  # half an id would be another run's
    return path.read_text().strip()
