"""Features of a frozen model, computed once for a training and kept in memory-mapped files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from .base import Example, packed
from .batching import evaluation_batches
from .predict import TOKEN_BUDGET

if TYPE_CHECKING:
    from .on_features import OnFeatures


class FeatureFile:
    """Features of examples in one memory-mapped file, (tokens, W) float32 as .npy; W as `OnFeatures.stored` has it.

    Example k has the rows ``starts[k]`` to ``starts[k + 1]``.
    """

    def __init__(self, path: str | os.PathLike, starts: np.ndarray):
        self.path, self.starts = Path(path), starts
        self._values = np.load(path, mmap_mode="r")

    @classmethod
    def compute(cls, model: OnFeatures, examples: Sequence[Example], path: str | os.PathLike) -> FeatureFile:
        """Runs the frozen model once over the examples and writes what it says of every token."""
        lengths = [example.num_tokens for example in examples]
        starts = np.concatenate(([0], np.cumsum(lengths)))
        width, device = model.stored_width, model.device
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        values = _new_map(path, (int(starts[-1]), width))
        for indices in evaluation_batches(lengths, TOKEN_BUDGET):
            chosen = [examples[index] for index in indices]
            batch = packed(chosen)
            found = model.eval().stored(batch.to(device)).float().cpu().numpy()
            bounds = batch.cu_seqlens.tolist()
            for index, begin, end in zip(indices, bounds[:-1], bounds[1:], strict=True):
                values[starts[index] : starts[index + 1]] = found[begin:end]
        values.flush()
        return cls(path, starts)

    def rows(self, example: int) -> np.ndarray:
        """The features of an example, read from the file."""
        return self._values[self.starts[example] : self.starts[example + 1]]


def _new_map(path: str | os.PathLike, shape: tuple[int, int]) -> np.memmap:
    """A new .npy file of zeros whose room on the disk is taken at once: where a page of a mapped file finds none later
    the system ends the process, without a word.

    Raises:
        OSError: no room; with the path.
    """
    try:
        values = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=shape)
        if hasattr(os, "posix_fallocate"):  # macOS has none
            with open(path, "r+b") as file:
                os.posix_fallocate(file.fileno(), 0, os.path.getsize(path))
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    return values


class Cached:
    """Gives examples their features: a directory of `FeatureFile`, one for each list of examples."""

    def __init__(self, model: OnFeatures, directory: str | os.PathLike):
        self.model, self.directory, self.files = model, Path(directory), []

    def add(self, examples: Sequence[Example]) -> list[Example]:
        """The examples, each with its ``features``."""
        if not examples:
            return []
        file = FeatureFile.compute(self.model, examples, self.directory / f"features-{len(self.files)}.npy")
        self.files.append(file)
        return [replace(example, features=(file, number)) for number, example in enumerate(examples)]

    def gather(self, examples: Sequence[Example]) -> dict[str, Tensor]:
        """The keyword ``features``, (T, W) float32, for a batch of examples that all have them; none otherwise."""
        if any(example.features is None for example in examples):
            return {}
        rows = [file.rows(number) for file, number in (example.features for example in examples)]
        return {"features": torch.from_numpy(np.concatenate(rows))}
