"""The kinds of models, found by config.json's ``model_type`` or by what the user names: a size, or a directory.

A new kind is an entry of `ARCHITECTURES`. Its configuration is a `ModelConfig`; if it can be pre-trained, with

    from_name(name, *, vocab_size, pad_token_id, **values)   a named size
    hidden_size, num_hidden_layers, vocab_size                read by plans and figures
    max_position_embeddings                                   the longest sequence, or None if there is no limit
    objectives                                                the `SampleConfig.objective`s that fit the model

and, if its arithmetic differs from BERT's, ``forward_flops(tokens, squares, predicted)`` (`train.flops`). Its models
have the interface of `PreTrainedModel` and take a `PackedBatch`:

    encoder        with ``output_hidden_states=True`` returns ``hidden_states``: ``config.num_hidden_layers`` + 1 of
                   them, (T, H) each, the embeddings first
    pretraining    returns ``mlm_loss`` and ``mlm_logits`` for the batch's labels, and ``nsp_loss`` and ``nsp_logits``
                   for its pairs. A class without next-sentence prediction sets ``next_sentence = False`` and returns
                   None for these; the others have ``next_sentence_parameters``, which get no gradient without pairs.
                   Its layers are ``layers``. ``fixed_shapes = False`` on the class says that its step cannot be
                   captured in a graph.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from ..model_config import ModelConfig, read_config_file, wrong_type

if TYPE_CHECKING:
    from .pretrained import PreTrainedModel


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """One kind. Classes are given as "module:name" within this package, and imported when they are asked for.

    Args:
        model_type: what config.json calls it.
        config: its configuration.
        encoder: the model without heads.
        encoder_options: options of that class's constructor with which it computes hidden states only.
        pretraining: the model with the heads that pre-training needs; None for a kind that is trained in another way.
        prefix: what the names of its sizes begin with; empty for BERT, whose sizes have none.
        dropout_fields: the fields of the configuration that are set by a single rate for all dropout.
        heads: the tasks' models, by what they read: "sequence" (a class or a number for a text or a pair), "choice".
    """

    model_type: str
    config: str
    encoder: str
    encoder_options: Mapping[str, Any] = field(default_factory=dict)
    pretraining: str | None = None
    prefix: str = ""
    dropout_fields: tuple[str, ...] = ()
    heads: Mapping[str, str] = field(default_factory=dict)

    @property
    def config_class(self) -> type[ModelConfig]:
        """The class of its configuration."""
        return _load(self.config)

    @property
    def encoder_class(self) -> type[PreTrainedModel]:
        """The class of the model without heads."""
        return _load(self.encoder)

    @property
    def pretraining_class(self) -> type[PreTrainedModel]:
        """The class of the model that is pre-trained."""
        return _load(self.pretraining)

    def head(self, reads: str) -> type:
        """The class of a task's model. Raises InputError if this kind has none."""
        if reads not in self.heads:
            raise InputError(
                f"a task that reads a {reads} needs a model with such a head, got the model_type {self.model_type!r}, "
                f"which has {' and '.join(self.heads) or 'none (--features trains a BiLSTM on such a model)'}"
            )
        return _load(self.heads[reads])

    def rates(self, dropout: float | None) -> dict[str, float]:
        """The configuration's fields that set this dropout rate everywhere; an empty dict for None."""
        return {} if dropout is None else dict.fromkeys(self.dropout_fields, dropout)

    def complete(self, config: ModelConfig, shards: Any) -> None:
        """Sets the fields that depend on the training text, for a new model whose configuration has ``complete_from``.

        Args:
            config: changed in place.
            shards: `data.shards.ShardSet` of the training split, or None if there are no data yet.
        """
        if hasattr(config, "complete_from"):
            config.complete_from(shards)


_GPT = {
    "encoder": "models.gpt:GPTModel",
    "pretraining": "models.gpt:GPTForPreTraining",
    "dropout_fields": ("resid_pdrop", "embd_pdrop", "attn_pdrop"),
    "heads": {
        "sequence": "models.gpt_heads:GPTForSequenceClassification",
        "choice": "models.gpt_heads:GPTForMultipleChoice",
    },
}

ARCHITECTURES = (
    Architecture(
        model_type="bert",
        config="config:BertConfig",
        encoder="models:BertModel",
        encoder_options={"add_pooling_layer": False},
        pretraining="models:BertForPreTraining",
        dropout_fields=("hidden_dropout_prob", "attention_probs_dropout_prob"),
        heads={"sequence": "models:BertForSequenceClassification", "choice": "models:BertForMultipleChoice"},
    ),
    Architecture(model_type="openai-gpt", config="gpt_config:GPTConfig", prefix="gpt", **_GPT),
    Architecture(model_type="gpt2", config="gpt_config:GPT2Config", prefix="gpt2", **_GPT),
    Architecture(
        model_type="elmo",
        config="elmo_config:ElmoConfig",
        encoder="models.elmo:ElmoModel",
        pretraining="models.elmo:ElmoForPreTraining",
        prefix="elmo",
        dropout_fields=("hidden_dropout_prob",),
    ),
    Architecture(
        model_type="static",
        config="models.static:StaticConfig",
        encoder="models.static:StaticEncoder",
        dropout_fields=("hidden_dropout_prob",),
    ),
)
PRETRAINABLE = tuple(kind for kind in ARCHITECTURES if kind.pretraining is not None)


def _load(place: str) -> type:
    module, _, name = place.partition(":")
    return getattr(import_module(f"fastbert.{module}"), name)


def of_type(model_type: str, kinds: Sequence[Architecture] = PRETRAINABLE) -> Architecture:
    """The kind with this ``model_type`` (as in config.json). Raises InputError if none of ``kinds`` has it."""
    for kind in kinds:
        if kind.model_type == model_type:
            return kind
    raise wrong_type(f"one of {', '.join(kind.model_type for kind in kinds)}", model_type)


def of_directory(directory: str | os.PathLike[str], kinds: Sequence[Architecture] = PRETRAINABLE) -> Architecture:
    """The kind that a directory's config.json names, or BERT if it names none.

    Raises:
        InputError: there is no config.json that can be read, or its kind is not among ``kinds``.
    """
    path, values = read_config_file(directory)
    try:
        return of_type(values.get("model_type", "bert"), kinds)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def of_model(name: str | os.PathLike[str]) -> Architecture:
    """The kind of the model that `PretrainConfig.model` names: a directory with a config.json, or a size.

    Raises:
        InputError: as `of_directory`.
    """
    if os.path.isdir(name):
        return of_directory(name)
    short = str(name).strip().lower()
    fitting = [kind for kind in PRETRAINABLE if short.startswith(kind.prefix)]
    return max(fitting, key=lambda kind: len(kind.prefix))
