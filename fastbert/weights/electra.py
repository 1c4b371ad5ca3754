"""Reads an ELECTRA (Clark et al. 2020) as a BERT, which it is if its embeddings are as wide as its layers.

Within the prefix its names are BERT's. Its heads for tokens and question answering are BERT's too, the others are not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import InputError

MODEL_TYPES = ("electra",)

# transformers' defaults for fields that a config.json lacks: the sizes of the small model.
_DEFAULTS = {"embedding_size": 128, "hidden_size": 256, "intermediate_size": 1024, "num_attention_heads": 4}
PREFIX = "electra"


def bert_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Translates the content of a config.json to BERT's fields.

    Raises:
        InputError: its embeddings have another width than its layers, unlike a BERT's.
    """
    ours = {**_DEFAULTS, **values, "model_type": "bert"}
    narrow, hidden = ours.pop("embedding_size"), ours["hidden_size"]
    if narrow != hidden:
        raise InputError(f"embedding_size must be hidden_size, {hidden}, for a BERT to be made of it, got {narrow}")
    return ours
