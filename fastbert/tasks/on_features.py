"""Heads on the features of a frozen model: what they share, the model below and its features.

The model may be of any kind (`models.encoders`): a BERT, with one of the choices in `features.LAYERS`; an ELMo, with a
learned mix of all layers; static vectors. For each kind of model a head has its own class, so that the weights of the
model are saved under the names of its kind.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..models import registry
from ..models.encoders import new_encoder, read_config
from ..models.pretrained import PreTrainedModel
from ..modules.mode import plain_outputs
from ..modules.scalar_mix import ScalarMix
from ..packing import PackedBatch
from .features import MIX, select_layers

UNITS = 768
"""The units in each direction of a BiLSTM (Devlin et al. 2019, section 5.3) without ``config.feature_units``."""

# The dropout rate if the model's configuration has none.
_DROPOUT = 0.1


class OnFeatures(PreTrainedModel):
    """Base class of the heads; `of_kind` makes the class for a kind of model.

    ``config.feature_layers`` chooses the features: one of `features.LAYERS`, or "mix" for a learned mix of all layers
    (`ScalarMix`), each first normalised to mean 0 and variance 1 if ``config.feature_layer_norm`` is set.
    """

    name: ClassVar[str]
    """The class for a kind of model is called KIND + "For" + this."""

    def __init__(self, config) -> None:
        super().__init__(config)
        self.num_labels = self.config.num_labels
        self.layers = self.config.feature_layers
        # The layers that can be mixed, of which the embeddings are one.
        self.num_layers = self.config.num_hidden_layers + 1
        setattr(self, self.base_model_prefix, new_encoder(self.config))
        self.units = getattr(self.config, "feature_units", None) or UNITS
        self.width = self.config.hidden_size * (4 if self.layers == "last4-concat" else 1)
        self.mix = None
        if self.layers == MIX:
            self.mix = ScalarMix(self.num_layers, getattr(self.config, "feature_layer_norm", False))

    def post_init(self) -> None:
        """Initialises what is trained, and freezes the model below."""
        for child in self.children():
            if child is not self.base_model:
                child.apply(self._init_weights)
        self.base_model.requires_grad_(False)

    def _init_weights(self, module: nn.Module) -> None:
        """Initialises weights like those of BERT's heads, whatever the model below is."""
        PreTrainedModel._init_weights(self, module)

    @property
    def dropout(self) -> float:
        """The dropout rate before the classifier."""
        return getattr(self.config, "hidden_dropout_prob", _DROPOUT)

    def train(self, mode: bool = True) -> OnFeatures:
        """Sets the training mode of the head; the model below stays in evaluation mode, without dropout."""
        super().train(mode)
        self.base_model.eval()
        return self

    @property
    def stored_width(self) -> int:
        """The number of values per token in a file of features."""
        return self.config.hidden_size * self.num_layers if self.mix is not None else self.width

    @torch.no_grad()
    def stored(self, batch: PackedBatch) -> Tensor:
        """(T, stored_width): the features of a batch before any trained part; for a mix, those of all layers."""
        wanted = plain_outputs(self.base_model) | {"output_hidden_states": True}
        states = self.base_model(batch, **wanted).hidden_states
        return torch.cat(states, 1) if self.mix is not None else select_layers(states, self.layers)

    def features(self, batch: PackedBatch, stored: Tensor | None = None) -> Tensor:
        """The features of a batch, (T, width) float32.

        Args:
            batch: the batch.
            stored: (T, stored_width), if they are known already; None computes them.
        """
        values = (self.stored(batch) if stored is None else stored).float()
        if self.mix is None:
            return values
        return self.mix(values.view(len(values), self.num_layers, self.width).transpose(0, 1))


@lru_cache
def of_kind(head: type[OnFeatures], model_type: str) -> type[OnFeatures]:
    """The class of a head for a kind of model. Raises InputError for a kind that has no encoder."""
    encoder = registry.of_type(model_type, registry.ARCHITECTURES).encoder_class
    name = encoder.__name__.removesuffix("Model").removesuffix("Encoder")
    # The base classes of a kind's encoder define how its files are read and written.
    bases = (head, *encoder.__bases__)
    parts = {"config_class": encoder.config_class, "base_model_prefix": encoder.base_model_prefix}
    return type(f"{name}For{head.name}", bases, parts | {"__module__": head.__module__, "__doc__": head.__doc__})


def load_head(head: type[OnFeatures], directory: str | os.PathLike, **config) -> OnFeatures:
    """A head on the model in a directory, of whatever kind; ``config`` overrides values of its configuration."""
    settings = read_config(directory, **config)
    return of_kind(head, settings.model_type).from_pretrained(directory, config=settings, ignore_mismatched_sizes=True)
