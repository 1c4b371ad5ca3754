"""The models that give every token of a batch a vector, by the kind that a config.json names."""

from __future__ import annotations

import os
from importlib import import_module

from ..errors import InputError
from ..model_config import ModelConfig, read_config_file, wrong_type
from .pretrained import PreTrainedModel

ENCODERS = {
    "bert": "bert:BertModel",
    "openai-gpt": "gpt:GPTModel",
    "gpt2": "gpt:GPTModel",
    "elmo": "elmo:ElmoModel",
    "static": "static:StaticEncoder",
}
"""model_type -> where its class is. A class takes a `PackedBatch`, and with ``output_hidden_states=True`` returns
``hidden_states``: ``config.num_hidden_layers`` + 1 of them, (T, H) each, what stands for the words first."""


def encoder_class(model_type: str) -> type[PreTrainedModel]:
    """The class of a kind. Raises InputError where there is none."""
    if not isinstance(model_type, str) or model_type not in ENCODERS:
        raise wrong_type(f"one of {', '.join(ENCODERS)}", model_type)
    module, _, name = ENCODERS[model_type].partition(":")
    return getattr(import_module(f"fastbert.models.{module}"), name)


def read_config(directory: str | os.PathLike, **overrides) -> ModelConfig:
    """The configuration of a directory, of whatever kind its config.json says; one that says nothing is a BERT's.

    Raises:
        InputError: there is no config.json that can be read, or it is of another kind.
    """
    path, values = read_config_file(directory)
    try:
        kind = encoder_class(values.get("model_type", "bert"))
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    return kind.config_class.from_pretrained(directory, **overrides)


def load_encoder(directory: str | os.PathLike) -> PreTrainedModel:
    """The model of a directory without its heads, in evaluation mode. Raises as `read_config` and `from_pretrained`."""
    config = read_config(directory)
    kind = encoder_class(config.model_type)
    return kind.from_pretrained(directory, config=config, **_without_pooler(kind))


def new_encoder(config: ModelConfig) -> PreTrainedModel:
    """A model of a configuration without heads, with new weights."""
    kind = encoder_class(config.model_type)
    return kind(config, **_without_pooler(kind))


def _without_pooler(kind: type[PreTrainedModel]) -> dict:
    """A pooler is a BERT's."""
    return {"add_pooling_layer": False} if kind.__name__ == "BertModel" else {}
