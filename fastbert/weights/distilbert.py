"""Reads a DistilBERT (Sanh et al. 2019) as a BERT, which it is but for its names and the lack of token types."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..errors import CheckpointError

MODEL_TYPES = ("distilbert",)
PREFIX = "distilbert"
PARTS: dict[str, str | None] = {
    "attention.self": None,
    "attention.self.query": "attention.q_lin",
    "attention.self.key": "attention.k_lin",
    "attention.self.value": "attention.v_lin",
    "attention.self.dropout": "attention.dropout",
    "attention.output": None,
    "attention.output.dense": "attention.out_lin",
    "attention.output.LayerNorm": "sa_layer_norm",
    "attention.output.dropout": None,
    "intermediate": "ffn",
    "intermediate.dense": "ffn.lin1",
    "intermediate.intermediate_act_fn": "ffn.activation",
    "output": None,
    "output.dense": "ffn.lin2",
    "output.dropout": "ffn.dropout",
    "output.LayerNorm": "output_layer_norm",
}
"""The names of the parts of a layer in BERT and in DistilBERT; None for parts that it lacks."""

FIELDS = {
    "hidden_size": "dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "intermediate_size": "hidden_dim",
    "hidden_act": "activation",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
}
"""The names of fields of the configuration in BERT and in DistilBERT."""

_TABLE = "embeddings.word_embeddings.weight"
_LAYER = re.compile(r"(?:distilbert\.)?transformer\.(layer\.\d+)\.(.+)\.(weight|bias)")
_NAMES = {theirs: ours for ours, theirs in PARTS.items() if theirs is not None}
_FIELD_NAMES = {theirs: ours for ours, theirs in FIELDS.items()}
_OF_WORDS = {
    "vocab_transform": "cls.predictions.transform.dense",
    "vocab_layer_norm": "cls.predictions.transform.LayerNorm",
    "vocab_projector": "cls.predictions.decoder",
}
# Two rows of zeros: tokenizers may give the second text of a pair type 1.
_TYPES = 2


def bert_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Translates the content of a DistilBERT's config.json to BERT's fields."""
    ours = {_FIELD_NAMES.get(name, name): value for name, value in values.items()}
    fixed = {"model_type": "bert", "type_vocab_size": _TYPES, "layer_norm_eps": 1e-12}
    # transformers' defaults of DistilBERT's fields.
    sizes = {"num_hidden_layers": 6, "num_attention_heads": 12, "hidden_size": 768, "intermediate_size": 3072}
    return {**sizes, **ours, **fixed}


def from_distilbert(state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """DistilBERT's tensors under BERT's names, with token types of zeros; any other state is returned as it is.

    Its heads for masked LM, tokens and question answering are the same as BERT's; that for sequences differs.

    Raises:
        CheckpointError: there are no word embeddings, from which the token types take their size.
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
