"""Models without heads, which compute a vector for every token: the encoder of any kind in `registry.ARCHITECTURES`."""

from __future__ import annotations

import os

from ..model_config import ModelConfig
from . import registry
from .pretrained import PreTrainedModel


def read_config(directory: str | os.PathLike[str], **overrides) -> ModelConfig:
    """The configuration in a directory, of the kind that its config.json names, or a BERT's if it names none.

    Raises:
        InputError: there is no config.json that can be read, or it is of another kind.
    """
    kind = registry.of_directory(directory, registry.ARCHITECTURES)
    return kind.config_class.from_pretrained(directory, **overrides)


def load_encoder(directory: str | os.PathLike[str]) -> PreTrainedModel:
    """The model of a directory without its heads, in evaluation mode. Raises as `read_config` and `from_pretrained`."""
    config = read_config(directory)
    kind = registry.of_type(config.model_type, registry.ARCHITECTURES)
    return kind.encoder_class.from_pretrained(directory, config=config, **kind.encoder_options)


def new_encoder(config: ModelConfig) -> PreTrainedModel:
    """A model of a configuration without heads, with new weights."""
    kind = registry.of_type(config.model_type, registry.ARCHITECTURES)
    return kind.encoder_class(config, **kind.encoder_options)
