"""The feature-based tagger of Devlin et al. 2019, section 5.3: a BERT that is not trained, under a BiLSTM that is.

Features of every token, in one of the choices of `features.LAYERS`, go through two BiLSTM layers of 768 units each way
and a classifier. They are computed once for a training and kept in a memory-mapped file.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from .. import ops, rng
from ..models.bert import BertHead
from ..modules.bilstm import over_sequences
from ..outputs import LogitsOutput
from ..packing import PackedBatch
from .base import Example
from .batching import evaluation_batches
from .features import select_layers
from .predict import TOKEN_BUDGET

UNITS = 768


class BertForFeatureTagging(BertHead):
    """A label for every token; ``config.feature_layers`` says which features are looked at, ``config.feature_units``
    how many units the BiLSTM has each way."""

    def __init__(self, config) -> None:
        super().__init__(config, add_pooling_layer=False)
        self.num_labels = self.config.num_labels
        self.layers = self.config.feature_layers
        width = self.config.hidden_size * (4 if self.layers == "last4-concat" else 1)
        units = getattr(self.config, "feature_units", UNITS)
        self.lstm = nn.LSTM(width, units, num_layers=2, bidirectional=True)
        self.classifier = nn.Linear(2 * units, self.num_labels)
        self.post_init()
        self.bert.requires_grad_(False)

    def train(self, mode: bool = True) -> BertForFeatureTagging:
        """The BERT below stays as it is used: without dropout."""
        super().train(mode)
        self.bert.eval()
        return self

    @torch.no_grad()
    def features(self, batch: PackedBatch) -> Tensor:
        """(T, H) features, or (T, 4H)."""
        return select_layers(self.bert(batch, output_hidden_states=True).hidden_states, self.layers)

    def forward(
        self, batch: PackedBatch, *, features: Tensor | None = None, labels: Tensor | None = None
    ) -> LogitsOutput:
        """Logits of a packed batch, and the mean loss over labelled tokens.

        Args:
            features: (T, H) or (T, 4H), where they are known already.
            labels: (T,) int64, -100 = no label.

        Returns:
            ``loss``, ``logits`` (T, C).
        """
        values = (self.features(batch) if features is None else features).float()
        hidden = over_sequences(self.lstm, values, batch.cu_seqlens)
        if self.training:
            hidden = ops.dropout(hidden, rng.current().site(self.config.hidden_dropout_prob, rng.HEAD_SITE))
        logits = self.classifier(hidden)
        loss = None if labels is None else ops.cross_entropy(logits, labels)
        return LogitsOutput(loss, logits, None, None)


class FeatureFile:
    """Features of examples in one memory-mapped file, (tokens, H) or (tokens, 4H) float32 as .npy.

    Example k has the rows ``starts[k]`` to ``starts[k + 1]``.
    """

    def __init__(self, path: str | os.PathLike, starts: np.ndarray):
        self.path, self.starts = Path(path), starts
        self._values = np.load(path, mmap_mode="r")

    @classmethod
    def compute(cls, model: BertForFeatureTagging, examples: Sequence[Example], path: str | os.PathLike) -> FeatureFile:
        """Runs the frozen BERT once over the examples and writes what it says of every token."""
        lengths = [example.num_tokens for example in examples]
        starts = np.concatenate(([0], np.cumsum(lengths)))
        width, device = model.lstm.input_size, model.device
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        values = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(int(starts[-1]), width))
        for indices in evaluation_batches(lengths, TOKEN_BUDGET):
            batch = PackedBatch.from_sequences([examples[index].input_ids for index in indices])
            found = model.eval().features(batch.to(device)).float().cpu().numpy()
            bounds = batch.cu_seqlens.tolist()
            for index, begin, end in zip(indices, bounds[:-1], bounds[1:], strict=True):
                values[starts[index] : starts[index + 1]] = found[begin:end]
        values.flush()
        return cls(path, starts)

    def rows(self, example: int) -> np.ndarray:
        """The features of an example, read from the file."""
        return self._values[self.starts[example] : self.starts[example + 1]]


class Cached:
    """Gives examples their features: a directory of `FeatureFile`, one for each list of examples."""

    def __init__(self, model: BertForFeatureTagging, directory: str | os.PathLike):
        self.model, self.directory, self.files = model, Path(directory), []

    def add(self, examples: Sequence[Example]) -> list[Example]:
        """The examples, each with ``meta.features`` (file, number)."""
        if not examples:
            return []
        file = FeatureFile.compute(self.model, examples, self.directory / f"features-{len(self.files)}.npy")
        self.files.append(file)
        return [replace(e, meta=replace(e.meta, features=(file, number))) for number, e in enumerate(examples)]


def gather(examples: Sequence[Example]) -> dict[str, Tensor]:
    """The keyword ``features`` for a batch of examples that all have them in files; none otherwise."""
    if any(example.meta.features is None for example in examples):
        return {}
    return {"features": torch.from_numpy(np.concatenate([f.rows(n) for f, n in (e.meta.features for e in examples)]))}
