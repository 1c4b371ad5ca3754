"""The feature-based tagger of Devlin et al. 2019, section 5.3: a trained BiLSTM on top of a frozen model.

The features of every token go through two BiLSTM layers, of 768 units in each direction, and a classifier.
"""

from __future__ import annotations

from torch import Tensor, nn

from .. import ops, rng
from ..modules.bilstm import over_sequences
from ..outputs import LogitsOutput
from ..packing import PackedBatch
from .on_features import OnFeatures


class FeatureTagger(OnFeatures):
    """A label for every token."""

    name = "FeatureTagging"

    def __init__(self, config) -> None:
        super().__init__(config)
        self.lstm = nn.LSTM(self.width, self.units, num_layers=2, bidirectional=True)
        self.classifier = nn.Linear(2 * self.units, self.num_labels)
        self.post_init()

    def forward(
        self, batch: PackedBatch, *, features: Tensor | None = None, labels: Tensor | None = None
    ) -> LogitsOutput:
        """Logits of a packed batch, and the mean loss over labelled tokens.

        Args:
            batch: the batch.
            features: (T, stored_width) float32, if they are stored; None computes them.
            labels: (T,) int64, -100 for no label.

        Returns:
            ``loss`` (), None without labels, and ``logits`` (T, C).
        """
        hidden = over_sequences(self.lstm, self.features(batch, features), batch.cu_seqlens)
        if self.training:
            hidden = ops.dropout(hidden, rng.current().site(self.dropout, rng.HEAD_SITE))
        logits = self.classifier(hidden)
        loss = None if labels is None else ops.cross_entropy(logits, labels)
        return LogitsOutput(loss, logits, None, None)
