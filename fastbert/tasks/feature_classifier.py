"""Feature-based classification and regression of a text or a pair: a trained BiLSTM on top of a frozen model.

A text is represented by the maximum of every unit over its tokens; for a pair u, v the classifier gets
(u, v, |u - v|, u * v) (Conneau et al. 2017, "Supervised Learning of Universal Sentence Representations", section 3).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .. import ops, rng
from ..models.logits import classification_loss
from ..modules.bilstm import over_sequences
from ..outputs import LogitsOutput
from ..packing import PackedBatch
from .on_features import OnFeatures


class FeatureClassifier(OnFeatures):
    """``config.num_labels`` outputs for every sequence, which contains a pair if ``config.feature_pairs``."""

    name = "FeatureClassification"

    def __init__(self, config) -> None:
        super().__init__(config)
        self.pairs = bool(self.config.feature_pairs)
        self.lstm = nn.LSTM(self.width, self.units, bidirectional=True)
        self.classifier = nn.Linear(2 * self.units * (4 if self.pairs else 1), self.num_labels)
        self.post_init()

    def forward(
        self, batch: PackedBatch, *, features: Tensor | None = None, labels: Tensor | None = None
    ) -> LogitsOutput:
        """Logits of a packed batch, and the loss.

        Args:
            batch: the batch; the second text of a pair has token types 1.
            features: (T, stored_width) float32, if they are stored; None computes them.
            labels: as in `models.logits.classification_loss`.

        Returns:
            ``loss`` (), None without labels, and ``logits`` (B, num_labels).
        """
        hidden = over_sequences(self.lstm, self.features(batch, features), batch.cu_seqlens)
        pooled = self.pool(hidden, batch)
        if self.training:
            pooled = ops.dropout(pooled, rng.current().site(self.dropout, rng.HEAD_SITE))
        logits = self.classifier(pooled)
        loss = None
        if labels is not None:
            loss = classification_loss(logits, labels, self.num_labels, self.config.problem_type)
        return LogitsOutput(loss, logits, None, None)

    def pool(self, hidden: Tensor, batch: PackedBatch) -> Tensor:
        """(T, F) -> (B, F), or (B, 4F) for pairs; zeros for a text without tokens."""
        lengths = batch.cu_seqlens.diff().long()
        texts = 2 if self.pairs else 1
        owner = torch.repeat_interleave(torch.arange(len(lengths), device=hidden.device), lengths) * texts
        if self.pairs:
            owner = owner + batch.token_type_ids
        found = hidden.new_zeros(len(lengths) * texts, hidden.shape[1])
        found = found.scatter_reduce(0, owner[:, None].expand_as(hidden), hidden, "amax", include_self=False)
        if not self.pairs:
            return found
        u, v = found[0::2], found[1::2]
        return torch.cat([u, v, (u - v).abs(), u * v], 1)
