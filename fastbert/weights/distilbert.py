"""DistilBERT (Sanh et al. 2019) read as the BERT that it is: one without token types, under names of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..errors import CheckpointError

MODEL_TYPES = ("distilbert",)
PARTS: tuple[tuple[str, str | None], ...] = (
    ("attention.self", None),
    ("attention.self.query", "attention.q_lin"),
    ("attention.self.key", "attention.k_lin"),
    ("attention.self.value", "attention.v_lin"),
    ("attention.self.dropout", "attention.dropout"),
    ("attention.output", None),
    ("attention.output.dense", "attention.out_lin"),
    ("attention.output.LayerNorm", "sa_layer_norm"),
    ("attention.output.dropout", None),
    ("intermediate", "ffn"),
    ("intermediate.dense", "ffn.lin1"),
    ("intermediate.intermediate_act_fn", "ffn.activation"),
    ("output", None),
    ("output.dense", "ffn.lin2"),
    ("output.dropout", "ffn.dropout"),
    ("output.LayerNorm", "output_layer_norm"),
)
"""The parts of a BERT's layer and what DistilBERT calls them; None for what it lacks."""

FIELDS = (
    ("hidden_size", "dim"),
    ("num_hidden_layers", "n_layers"),
    ("num_attention_heads", "n_heads"),
    ("intermediate_size", "hidden_dim"),
    ("hidden_act", "activation"),
    ("hidden_dropout_prob", "dropout"),
    ("attention_probs_dropout_prob", "attention_dropout"),
)
"""The fields of a BERT's configuration and what DistilBERT's calls them."""

_TABLE = "embeddings.word_embeddings.weight"
_LAYER = re.compile(r"(?:distilbert\.)?transformer\.(layer\.\d+)\.(.+)\.(weight|bias)")
_NAMES = {theirs: ours for ours, theirs in PARTS if theirs is not None}
IN_BERTS_WORDS = {theirs: ours for ours, theirs in FIELDS}
_OF_WORDS = {
    "vocab_transform": "cls.predictions.transform.dense",
    "vocab_layer_norm": "cls.predictions.transform.LayerNorm",
    "vocab_projector": "cls.predictions.decoder",
}
# A second row of zeros, for tokenizers that mark the second of two texts.
_TYPES = 2


def bert_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a DistilBERT's config.json in BERT's words."""
    ours = {IN_BERTS_WORDS.get(name, name): value for name, value in values.items()}
    fixed = {"model_type": "bert", "type_vocab_size": _TYPES, "layer_norm_eps": 1e-12}
    # Its own fields for sizes have defaults of their own.
    sizes = {"num_hidden_layers": 6, "num_attention_heads": 12, "hidden_size": 768, "intermediate_size": 3072}
    return {**sizes, **ours, **fixed}


def from_distilbert(state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """DistilBERT's tensors under BERT's names, with token types of zeros; any other state comes back as it is.

    Its heads for masked words, tags and answers are BERT's, that for whole texts is another one.

    Raises:
        CheckpointError: there are no word embeddings to take the size of the token types from.
    """
    if not any(_LAYER.fullmatch(name) for name in state):
        return state
    out: dict[str, Tensor] = {}
    for name, tensor in state.items():
        match = _LAYER.fullmatch(name)
        if match:
            name = f"encoder.{match[1]}.{_NAMES.get(match[2], match[2])}.{match[3]}"
        part, _, leaf = name.removeprefix("distilbert.").rpartition(".")
        out[f"{_OF_WORDS.get(part, part)}.{leaf}" if part else leaf] = tensor
    words = out.get(_TABLE)
    if words is None or words.dim() != 2:
        raise CheckpointError(f"a DistilBERT: expected a table of word embeddings, {_TABLE}, got none")
    out["embeddings.token_type_embeddings.weight"] = torch.zeros(_TYPES, words.shape[1], dtype=words.dtype)
    return out
