"""A run's rows on Weights & Biases, where the user has it installed and asks for it."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import InputError


def check_installed(project: str | None) -> None:
    """Raises InputError where rows are to go to wandb and it is not there."""
    if project is None:
        return
    try:
        import wandb  # noqa: F401
    except ImportError:
        raise InputError("--wandb needs the package wandb (pip install wandb), found none") from None


class WandbLog:
    """Sends rows to a project; as ``kind/name`` against the step, as TensorBoard shows them.

    Args:
        project: None sends nothing and needs nothing installed.
        run_dir: the run's directory, whose name is the run's; wandb's own files go into it.
        config: the options of the run.

    Raises:
        InputError: wandb is not installed.
    """

    def __init__(self, project: str | None, run_dir: str | os.PathLike, config: dict) -> None:
        self._run = None
        check_installed(project)
        if project is None:
            return
        import wandb

        directory = Path(run_dir).resolve()
        # The directory is the run's identity, so that a resumed run goes on in its own curves.
        self._run = wandb.init(
            project=project, name=directory.name, dir=str(directory), config=config, id=_id(directory), resume="allow"
        )

    def log(self, kind: str, step: int, values: dict) -> None:
        """Adds a row; words are left out."""
        if self._run is not None:
            numbers = {f"{kind}/{name}": value for name, value in values.items() if isinstance(value, int | float)}
            self._run.log(numbers, step=step)

    def close(self) -> None:
        """Ends the run there."""
        if self._run is not None:
            self._run.finish()


def _id(directory: Path) -> str:
    """The run's id at Weights & Biases, the same for every process that goes on with the run."""
    path = directory / "wandb-id"
    if not path.exists():
        import uuid

        path.write_text(uuid.uuid4().hex[:16] + "\n")
    return path.read_text().strip()
