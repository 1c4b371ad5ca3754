"""One file per library, with `Adapter` classes that load the model and run a batch."""

from __future__ import annotations

import abc
from pathlib import Path

import numpy as np


class Adapter(abc.ABC):
    """A library with the model loaded, inside a worker process.

    Args:
        directory: a Hugging Face directory, in which `convert` has written its files.
        dtype: "fp32", "bf16", "int8", or "fp64" for the truth.
        threads: the number of threads.
    """

    def __init__(self, directory: Path, dtype: str, threads: int) -> None:
        self.directory, self.dtype, self.threads = directory, dtype, threads

    @classmethod  # noqa: B027  (not abstract: most libraries need none)
    def convert(cls, directory: Path, dtype: str) -> None:
        """Writes the model in the library's own format below ``directory``; runs in a process that then ends."""

    @abc.abstractmethod
    def prepare(self, batch: dict[str, np.ndarray]) -> None:
        """Converts a batch to the library's own form, so that `step` need not."""

    @abc.abstractmethod
    def answer(self) -> dict[str, np.ndarray]:
        """The results to compare with the truth: ``hidden`` (B, S, H), or ``loss`` and gradients by parameter name."""

    @abc.abstractmethod
    def step(self) -> float | None:
        """Makes one run: a forward pass, or a training step, whose loss is returned."""


def load(path: str) -> type[Adapter]:
    """The class named "package.module:Class"; a module that begins with a dot is of this package."""
    import importlib

    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module, __name__), name)
