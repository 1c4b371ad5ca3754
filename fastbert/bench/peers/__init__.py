"""One file per library, with `Adapter` classes that load the model and run a batch; `probe` measures the machine."""

from __future__ import annotations

import abc
import importlib
from pathlib import Path

import numpy as np

# Ways to call a library, as in the names of variants. The first two spare one that computes padded rectangles most
# pads of a batch of mixed lengths; in training the third spares it the vocabulary's logits that no label asks for.
SORTED, EACH, LABELLED = "sorted, 4 a call", "one call a sentence", "labelled tokens only"
_AT_ONCE = {SORTED: 4, EACH: 1}


class Adapter(abc.ABC):
    """A library with the model loaded, inside a worker process.

    Args:
        directory: a Hugging Face directory, in which `convert` has written its files.
        dtype: "fp32", "bf16", "int8", or "fp64" for the truth.
        threads: the number of threads.
    """

    # How the library is called, which `prepare` heeds: one of the ways above; None for all of a batch in one call.
    way: str | None = None

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


def calls(lengths: np.ndarray, way: str | None) -> list[np.ndarray]:
    """The rows of each call.

    Args:
        lengths: (B,) the number of tokens of each sequence.
        way: `SORTED`, the longest first, so that memory allocated for them suffices for all; `EACH`; or None.
    """
    if way is None:
        return [np.arange(len(lengths))]
    order = np.arange(len(lengths)) if way == EACH else np.argsort(-lengths, kind="stable")
    return [order[begin : begin + _AT_ONCE[way]] for begin in range(0, len(order), _AT_ONCE[way])]


class PaddedInference(Adapter):
    """A library that computes padded rectangles: one of the whole batch, or a smaller one in each of several calls."""

    @abc.abstractmethod
    def inputs_of(self, batch: dict[str, np.ndarray]):
        """A padded batch in the library's own form."""

    @abc.abstractmethod
    def hidden(self, inputs):
        """The hidden states of one call, which stay what they are when there is another call."""

    def array_of(self, hidden) -> np.ndarray:
        """The hidden states of one call as an array."""
        return hidden

    def prepare(self, batch: dict[str, np.ndarray]) -> None:
        lengths = batch["attention_mask"].sum(1)
        self.shape = batch["attention_mask"].shape
        self.rows = calls(lengths, self.way)
        self.inputs = []
        for rows in self.rows:
            width = self.shape[1] if self.way is None else lengths[rows].max()
            part = {name: np.ascontiguousarray(values[rows, :width]) for name, values in batch.items()}
            self.inputs.append(self.inputs_of(part))

    def answer(self) -> dict[str, np.ndarray]:
        parts = [self.array_of(self.hidden(inputs)) for inputs in self.inputs]
        hidden = np.zeros((*self.shape, parts[0].shape[-1]), parts[0].dtype)
        for rows, part in zip(self.rows, parts, strict=True):
            hidden[rows, : part.shape[1]] = part
        return {"hidden": hidden}

    def step(self) -> None:
        # Kept to the end, as by a caller who wants all of them.
        _ = [self.hidden(inputs) for inputs in self.inputs]


def load(path: str) -> type[Adapter]:
    """The class named "package.module:Class"; a module that begins with a dot is of this package."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module, __name__), name)
