"""What stands on the features of a model that is not trained: the model below, and the features that are looked at.

The model may be of any kind (`models.encoders`): a BERT in one of the choices of `features.LAYERS`, an ELMo by its own
mix of all layers, static vectors. A head is a class for each kind, whose saved weights keep the kind's names.
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
"""Of each direction of an LSTM on features (Devlin et al. 2019, section 5.3) without ``config.feature_units``."""

# Where the configuration of the model below has no such rate.
_DROPOUT = 0.1


class OnFeatures(PreTrainedModel):
    """Base class of the heads; `of_kind` makes the class for a kind of model.

    ``config.feature_layers`` says which features are looked at: one of `features.LAYERS`, or "mix" for a learned mix of
    all layers (`ScalarMix`), each first brought to mean 0 and variance 1 where ``config.feature_layer_norm`` says so.
    """

    name: ClassVar[str]
    """What the class of a kind is called: kind + "For" + this."""

    def __init__(self, config) -> None:
        super().__init__(config)
        self.num_labels = self.config.num_labels
        self.layers = self.config.feature_layers
        # One vector a layer, the embeddings as one.
        self.num_layers = self.config.num_hidden_layers + 1
        setattr(self, self.base_model_prefix, new_encoder(self.config))
        self.units = getattr(self.config, "feature_units", None) or UNITS
        self.width = self.config.hidden_size * (4 if self.layers == "last4-concat" else 1)
        self.mix = None
        if self.layers == MIX:
            self.mix = ScalarMix(self.num_layers, getattr(self.config, "feature_layer_norm", False))

    def post_init(self) -> None:
        """The first weights of what is trained; the model below has its own and is not."""
        for child in self.children():
            if child is not self.base_model:
                child.apply(self._init_weights)
        self.base_model.requires_grad_(False)

    def _init_weights(self, module: nn.Module) -> None:
        """Draws weights as BERT's heads do, whatever the model below is."""
        PreTrainedModel._init_weights(self, module)

    @property
    def dropout(self) -> float:
        """The rate before the classifier."""
        return getattr(self.config, "hidden_dropout_prob", _DROPOUT)

    def train(self, mode: bool = True) -> OnFeatures:
        """The model below stays as it is used: without dropout."""
        super().train(mode)
        self.base_model.eval()
        return self

    @property
    def stored_width(self) -> int:
        """Numbers a token in a file of features."""
        return self.config.hidden_size * self.num_layers if self.mix is not None else self.width

    @torch.no_grad()
    def stored(self, batch: PackedBatch) -> Tensor:
        """(T, stored_width): what of a batch never changes in a training. For a mix that is every layer."""
        wanted = plain_outputs(self.base_model) | {"output_hidden_states": True}
        states = self.base_model(batch, **wanted).hidden_states
        return torch.cat(states, 1) if self.mix is not None else select_layers(states, self.layers)

    def features(self, batch: PackedBatch, stored: Tensor | None = None) -> Tensor:
        """(T, width) float32 features.

        Args:
            stored: (T, stored_width) of the batch, where it is known already.
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
    # How a kind's files are read and written is said by the class above its encoder.
    bases = (head, *encoder.__bases__)
    parts = {"config_class": encoder.config_class, "base_model_prefix": encoder.base_model_prefix}
    return type(f"{name}For{head.name}", bases, parts | {"__module__": head.__module__, "__doc__": head.__doc__})


def load_head(head: type[OnFeatures], directory: str | os.PathLike, **config) -> OnFeatures:
    """A head on the model of a directory, whatever its kind; the values of ``config`` win over its own."""
    settings = read_config(directory, **config)
    return of_kind(head, settings.model_type).from_pretrained(directory, config=settings, ignore_mismatched_sizes=True)
