"""Static vectors: one per vocabulary entry, whatever its context: a baseline with the interface of the other models."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..errors import InputError
from ..model_config import COMMON, ModelConfig
from ..outputs import BertModelOutput
from ..packing import PackedBatch
from .checks import check_range
from .pretrained import PreTrainedModel

_DEFAULTS: dict[str, Any] = {
    "vocab_size": 30522,
    "hidden_size": 300,
    "num_hidden_layers": 0,
    "hidden_dropout_prob": 0.1,
    "classifier_dropout": None,
    "initializer_range": 0.02,
    "max_position_embeddings": None,
    "pad_token_id": 0,
    **COMMON,
    "trained_by": None,
}


class StaticConfig(ModelConfig):
    """Sizes of a `StaticEncoder`; ``trained_by`` says how its vectors were made. Raises InputError as `BertConfig`."""

    model_type = "static"
    defaults = _DEFAULTS
    limits: ClassVar[dict[str, int]] = {"vocab_size": 1 << 24, "hidden_size": 1 << 16, "num_labels": 100_000}
    objectives = ()

    hidden_dropout_prob: float
    classifier_dropout: float | None
    trained_by: dict | None

    def validate(self) -> None:
        """Raises InputError, one sentence, at the first field that does not fit."""
        for name in self.limits:
            self._check_int(name, getattr(self, name))
        for name in ("hidden_dropout_prob", "classifier_dropout"):
            self._check_float(name, 0.0, 1.0, optional=name == "classifier_dropout")
        self._check_float("initializer_range", 0.0, 100.0)
        super().validate()

    def num_parameters(self) -> int:
        return self.vocab_size * self.hidden_size


class StaticEmbeddings(nn.Module):
    """The table, under the name that BERT's has."""

    def __init__(self, config: StaticConfig) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)


class StaticEncoder(PreTrainedModel):
    """A table of vectors: ids (T,) -> (T, H). Tokens that did not occur in training have zeros."""

    config: StaticConfig
    config_class = StaticConfig
    base_model_prefix = "static"

    def __init__(self, config: StaticConfig) -> None:
        super().__init__(config)
        self.embeddings = StaticEmbeddings(self.config)
        self.post_init()

    @classmethod
    def of_vectors(cls, vectors: Tensor, **values: Any) -> StaticEncoder:
        """An encoder with the vectors of a table (V, H); ``values`` are further fields of the configuration."""
        model = cls(StaticConfig(vocab_size=vectors.shape[0], hidden_size=vectors.shape[1], **values))
        with torch.no_grad():
            model.embeddings.word_embeddings.weight.copy_(vectors)
        return model.eval()

    def forward(
        self, batch: PackedBatch, *, output_hidden_states: bool | None = None, return_dict: bool | None = None
    ) -> BertModelOutput | tuple[Any, ...]:
        """``last_hidden_state`` (T, H), which is also the only one of ``hidden_states``. Raises InputError for an id
        outside the table."""
        if not isinstance(batch, PackedBatch):
            raise InputError(f"static vectors take a PackedBatch, got {type(batch).__name__}")
        check_range("input_ids", batch.input_ids, self.config.vocab_size, "the vocabulary has")
        vectors = self.embeddings.word_embeddings(batch.input_ids)
        keep = self._wants("output_hidden_states", output_hidden_states)
        output = BertModelOutput(last_hidden_state=vectors, hidden_states=(vectors,) if keep else None)
        return self._as_asked(output, return_dict)
