"""The kinds of models that can be pre-trained, by what the user names: a size, or a directory.

A new kind is a line in `ARCHITECTURES`. Its configuration is a `ModelConfig` with

    from_name(name, *, vocab_size, pad_token_id, **values)   a named size
    hidden_size, num_hidden_layers, vocab_size                read by plans and figures
    max_position_embeddings                                   the longest sequence, or None where there is no limit
    objectives                                                the `PretrainingConfig.objective`s that fit the model

and, where BERT's arithmetic is not its own, ``forward_flops(tokens, squares, predicted)`` (`train.flops`). Its model
takes a `PackedBatch`, returns ``mlm_loss`` and ``mlm_logits`` of the batch's labels and ``nsp_loss`` and ``nsp_logits``
of its pairs (None, with ``next_sentence = False`` on the class, where it predicts none), holds its layers as
``layers``, and has the habits of `PreTrainedModel`. ``fixed_shapes = False`` on the class: no graph of its step can be
captured.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from ..errors import InputError
from ..model_config import ModelConfig, read_config_file, wrong_type


@dataclass(frozen=True)
class Architecture:
    """One kind.

    Args:
        model_type: what config.json calls it.
        config, pretraining: its configuration, and the model with the heads that pre-training needs, as
            "module:name" within this package; imported when they are asked for.
        prefix: what the names of its sizes begin with; empty for BERT, whose sizes have none.
        dropout_fields: of the configuration, the rates that one rate for all sets.
        heads: of tasks, by what they read: "sequence" (a class or a number of a text or a pair), "choice".
    """

    model_type: str
    config: str
    pretraining: str
    prefix: str
    dropout_fields: tuple[str, ...]
    heads: Mapping[str, str] = field(default_factory=dict)

    @property
    def config_class(self) -> type[ModelConfig]:
        return _load(self.config)

    @property
    def model_class(self) -> type:
        return _load(self.pretraining)

    def head(self, reads: str) -> type:
        """The class of a task's model. Raises InputError where this kind has none."""
        if reads not in self.heads:
            raise InputError(
                f"a task that reads a {reads} needs a model with such a head, got the model_type {self.model_type!r}, "
                f"which has {' and '.join(self.heads) or 'none (--features trains a BiLSTM on such a model)'}"
            )
        return _load(self.heads[reads])

    def rates(self, dropout: float | None) -> dict[str, float]:
        """Values of the configuration for one dropout rate everywhere; none for None."""
        return {} if dropout is None else dict.fromkeys(self.dropout_fields, dropout)

    def complete(self, config: ModelConfig, shards: Any) -> None:
        """Gives a configuration of new weights what the training text decides, where it has ``complete_from``.

        Args:
            shards: `data.shards.ShardSet` of the training split, or None where there is no data yet.
        """
        if hasattr(config, "complete_from"):
            config.complete_from(shards)


_GPT_RATES = ("resid_pdrop", "embd_pdrop", "attn_pdrop")
_GPT_HEADS = {
    "sequence": "models.gpt_heads:GPTForSequenceClassification",
    "choice": "models.gpt_heads:GPTForMultipleChoice",
}

ARCHITECTURES = (
    Architecture(
        "bert",
        "config:BertConfig",
        "models:BertForPreTraining",
        "",
        ("hidden_dropout_prob", "attention_probs_dropout_prob"),
        {"sequence": "models:BertForSequenceClassification", "choice": "models:BertForMultipleChoice"},
    ),
    Architecture("openai-gpt", "gpt_config:GPTConfig", "models.gpt:GPTForPreTraining", "gpt", _GPT_RATES, _GPT_HEADS),
    Architecture("gpt2", "gpt_config:GPT2Config", "models.gpt:GPTForPreTraining", "gpt2", _GPT_RATES, _GPT_HEADS),
    Architecture("elmo", "elmo_config:ElmoConfig", "models.elmo:ElmoForPreTraining", "elmo", ("hidden_dropout_prob",)),
)


def _load(place: str) -> type:
    module, _, name = place.partition(":")
    return getattr(import_module(f"fastbert.{module}"), name)


def of_type(model_type: str) -> Architecture:
    """By the word of a config.json. Raises InputError where no kind has it."""
    for kind in ARCHITECTURES:
        if kind.model_type == model_type:
            return kind
    known = ", ".join(kind.model_type for kind in ARCHITECTURES)
    raise wrong_type(f"one of {known}", model_type)


def of_model(name: str | os.PathLike) -> Architecture:
    """By what `PretrainConfig.model` says: a directory with a config.json, or the name of a size.

    Raises:
        InputError: the directory has no config.json that can be read, or one of a kind that is not known.
    """
    if os.path.isdir(name):
        path, values = read_config_file(name)
        try:
            return of_type(values.get("model_type", "bert"))
        except InputError as error:
            raise InputError(f"{path}: {error}") from error
    short = str(name).strip().lower()
    fitting = [kind for kind in ARCHITECTURES if short.startswith(kind.prefix)]
    return max(fitting, key=lambda kind: len(kind.prefix))
