"""Features of a frozen model, computed once per training and stored in memory-mapped files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from .base import Example, by_sequence, packed
from .batching import evaluation_batches
from .predict import TOKEN_BUDGET

if TYPE_CHECKING:
    from .on_features import OnFeatures


class FeatureFile:
    """Features of a list of examples in one memory-mapped .npy file, (tokens, W) float32 with W =
    `OnFeatures.stored_width`.

    Args:
        path: the file.
        starts: (examples + 1,) int64; example k has the rows ``starts[k]`` to ``starts[k + 1]``.
    """

    def __init__(self, path: str | os.PathLike, starts: np.ndarray):
        self.path, self.starts = Path(path), starts
        self._values = np.load(path, mmap_mode="r")

    @classmethod
    def compute(cls, model: OnFeatures, examples: Sequence[Example], path: str | os.PathLike) -> FeatureFile:
        """Runs the frozen model once over the examples and writes its features of every token. Raises OSError if there
        is no room on the disk."""
        lengths = [example.num_tokens for example in examples]
        starts = np.concatenate(([0], np.cumsum(lengths)))
        width, device = model.stored_width, model.device
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        values = _new_map(path, (int(starts[-1]), width))
        for indices in evaluation_batches(lengths, TOKEN_BUDGET):
            chosen = [examples[index] for index in indices]
            batch = packed(chosen)
            found = model.eval().stored(batch.to(device)).float().cpu().numpy()
            for index, own in zip(indices, by_sequence(found, batch), strict=True):
                values[starts[index] : starts[index + 1]] = own
        values.flush()
        return cls(path, starts)

    def rows(self, example: int) -> np.ndarray:
        """The features of an example, (tokens, W), read from the file."""
        return self._values[self.starts[example] : self.starts[example + 1]]


def _new_map(path: str | os.PathLike, shape: tuple[int, int]) -> np.memmap:
    """A new .npy file of zeros whose disk space is allocated at once: if it ran out while pages are written, the system
    would kill the process (SIGBUS) without a message.

    Raises:
        OSError: there is no room on the disk; names the path.
    """
    try:
        values = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=shape)
        if hasattr(os, "posix_fallocate"):  # not on macOS
            with open(path, "r+b") as file:
                os.posix_fallocate(file.fileno(), 0, os.path.getsize(path))
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    return values


class Cached:
    """A cache of features in a directory, with a `FeatureFile` for each list of examples.

    Args:
        model: the head whose frozen model computes the features.
        directory: where the files are written.
    """

    def __init__(self, model: OnFeatures, directory: str | os.PathLike):
        self.model, self.directory, self.files = model, Path(directory), []

    def add(self, examples: Sequence[Example]) -> list[Example]:
        """Computes the features of examples; returns the examples with their ``features`` set."""
        if not examples:
            return []
        file = FeatureFile.compute(self.model, examples, self.directory / f"features-{len(self.files)}.npy")
        self.files.append(file)
        return [replace(example, features=(file, number)) for number, example in enumerate(examples)]

    def gather(self, examples: Sequence[Example]) -> dict[str, Tensor]:
        """The keyword argument ``features``, (T, W) float32, for a batch of examples; none if an example has none."""
        if any(example.features is None for example in examples):
            return {}
        rows = [file.rows(number) for file, number in (example.features for example in examples)]
        return {"features": torch.from_numpy(np.concatenate(rows))}
