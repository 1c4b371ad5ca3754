"""A checkpoint that is written while training goes on."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from ..errors import CheckpointError
from . import checkpoint


class BackgroundSave:
    """Saves a copy of the tensors in a thread; at most one save is in progress.

    The memory of the copy is reused by the next save, so a save costs training one pass over the tensors, and the
    process needs memory for one more copy of a checkpoint. Writing and hashing release the GIL. The thread is not a
    daemon: a process that ends during a save waits for it.

    Args:
        save: the function that writes, with the signature of `checkpoint.save`.
    """

    def __init__(self, save: Callable[..., Path] = checkpoint.save) -> None:
        self._save = save
        self._copies: dict[str, Tensor] = {}
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def busy(self) -> bool:
        """Whether a save is in progress."""
        return self._thread is not None and self._thread.is_alive()

    def submit(self, directory: Path, step: int, tensors: dict[str, Tensor], state: dict, **options) -> None:
        """Waits for the last save, copies the tensors and starts the next one, with arguments of `checkpoint.save`.

        Raises:
            CheckpointError: the last save has failed.
        """
        self.wait()
        held = {name: self._copy(name, value) for name, value in tensors.items()}
        for device in {value.device for value in tensors.values() if value.is_cuda}:
            torch.cuda.synchronize(device)
        self._copies = held
        arguments = (directory, step, held, copy.deepcopy(state))
        self._thread = threading.Thread(target=self._work, args=arguments, kwargs=options, name="fastbert-save")
        self._thread.start()

    def _copy(self, name: str, value: Tensor) -> Tensor:
        value = value.detach()
        held = self._copies.get(name)
        if held is None or held.shape != value.shape or held.dtype != value.dtype:
            held = torch.empty(value.shape, dtype=value.dtype, pin_memory=value.is_cuda, device="cpu")
        return held.copy_(value, non_blocking=True)

    def _work(self, directory: Path, step: int, tensors: dict[str, Tensor], state: dict, **options) -> None:
        try:
            self._save(directory, step, tensors, state, **options)
        except BaseException as error:  # raised in the main thread, by `check`
            self._error = error

    def check(self) -> None:
        """Raises CheckpointError if a save has failed, once for each; does not wait."""
        if self.busy or self._error is None:
            return
        error, self._error = self._error, None
        if isinstance(error, CheckpointError):
            raise error
        raise CheckpointError(f"a checkpoint could not be written in the background: {error!r}") from error

    def wait(self) -> None:
        """Waits until no save is in progress; raises like `check`."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.check()
