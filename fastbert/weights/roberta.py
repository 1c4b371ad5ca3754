"""Reads RoBERTa (Liu et al. 2019), XLM-R and CamemBERT as BERTs, from which they differ in their positions, which begin
after those of pads, in having a single token type, and in the names of the masked-LM head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..config import ERF_GELU
from ..errors import CheckpointError

_TOKENIZERS = {
    "roberta": "RobertaTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
    "camembert": "CamembertTokenizer",
}
MODEL_TYPES = tuple(_TOKENIZERS)

# transformers' defaults for fields that a config.json lacks.
DEFAULTS = {"vocab_size": 50265, "pad_token_id": 1, "max_position_embeddings": 512, "type_vocab_size": 2}
PREFIX = "roberta"  # of all three, in transformers
_POSITIONS, _TYPES = (f"embeddings.{name}_embeddings.weight" for name in ("position", "token_type"))
# Its heads compute the same as BERT's. The one for sequences includes the layer that is BERT's pooler.
_OF_TEXTS = (("classifier.dense.", "pooler.dense."), ("classifier.out_proj.", "classifier."))
_OF_WORDS = (
    ("lm_head.dense.", "cls.predictions.transform.dense."),
    ("lm_head.layer_norm.", "cls.predictions.transform.LayerNorm."),
    ("lm_head.", "cls.predictions."),
)


def _first_position(values: Mapping[str, Any]) -> int:
    """The row of the first token in the table of positions; the rows before it are for pads."""
    pad = values.get("pad_token_id", DEFAULTS["pad_token_id"])
    return (pad if isinstance(pad, int) else 0) + 1  # null, or what BertConfig refuses


def bert_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Translates the content of a config.json to BERT's fields."""
    ours = {**DEFAULTS, **values, "model_type": "bert"}
    # Without it transformers takes the tokenizer's class from the type of the model.
    ours.setdefault("tokenizer_class", _TOKENIZERS.get(values.get("model_type")))
    rows, types = ours["max_position_embeddings"], ours["type_vocab_size"]
    if isinstance(rows, int):  # otherwise BertConfig raises the error
        ours["max_position_embeddings"] = rows - _first_position(values)
    if types == 1:
        ours["type_vocab_size"] = 2
    return ours


def from_roberta(state: Mapping[str, Tensor], values: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors of such a model under BERT's names, without the positions of pads.

    The single row of token types is repeated, since tokenizers may give the second text of a pair type 1. The heads
    become BERT's.

    Args:
        state: the tensors, without the prefix.
        values: the content of config.json.

    Raises:
        CheckpointError: the table of positions has no rows after those of pads.
    """
    out: dict[str, Tensor] = {}
    # BERT's masked-LM head has the activation of its layers, RoBERTa's always has this one.
    heads = (*_OF_TEXTS, *(_OF_WORDS if values.get("hidden_act", "gelu") in ERF_GELU else ()))
    has_head = any(name.startswith(_OF_TEXTS[0][0]) for name in state)
    for name, tensor in state.items():
        if has_head and name.startswith("pooler."):
            # Left over from pre-training, as in published classifiers: the head has a layer of its own in its place.
            out[f"{PREFIX}.{name}"] = tensor
            continue
        for theirs, ours in heads:
            if name.startswith(theirs):
                name = ours + name.removeprefix(theirs)
                break
        if name == _POSITIONS and tensor.dim() == 2:
            first = _first_position(values)
            if tensor.shape[0] <= first:
                raise CheckpointError(
                    f"{name}: expected rows behind the first {first}, which are for pads, got {tuple(tensor.shape)}"
                )
            tensor = tensor[first:]
        if name == _TYPES and tensor.shape[:1] == (1,):
            tensor = torch.cat([tensor, tensor])
        out[name] = tensor
    return out
