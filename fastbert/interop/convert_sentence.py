"""Writes a sentence-transformers directory: the model, how its tokens are pooled, whether vectors are normalised."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import InputError
from . import saving
from .checkpoint import load_into

POOLINGS = ("mean", "cls", "max")
# The names under which every release so far reads its modules.
_MODULES = ("Transformer", "Pooling", "Normalize")
_FLAGS = {"cls": "pooling_mode_cls_token", "mean": "pooling_mode_mean_tokens", "max": "pooling_mode_max_tokens"}


def write_sentence_transformers(
    found, target: Path, *, pooling: str = "mean", normalize: bool = True, max_seqlen: int | None = None
) -> None:
    """The encoder of a model as a directory for `SentenceTransformer` and for our `SentenceEncoder`.

    Args:
        found: a `Source`; a head on its encoder is left out.
        pooling: how the vectors of a text's tokens become one.
        normalize: whether vectors are scaled to length 1.
        max_seqlen: longer texts are cut; the model's own limit where it is not given.

    Raises:
        InputError: an unknown pooling, or no tokenizer beside the weights.
    """
    from ..models import BertModel

    if pooling not in POOLINGS:
        raise InputError(f"pooling must be one of {', '.join(POOLINGS)}, got {pooling!r:.50}")
    if not saving.tokenizer_files(found.tokenizer):
        raise InputError(f"{found.tokenizer}: expected the tokenizer's files beside the weights, found none")
    model = found.model
    if not isinstance(model, BertModel):
        bare = BertModel(model.config, add_pooling_layer=model.bert.pooler is not None).to(model.dtype)
        load_into(bare, model.bert.state_dict(), source=found.tokenizer)
        model = bare
    modules = [
        {
            "idx": i,
            "name": str(i),
            "path": "" if i == 0 else f"{i}_{name}",
            "type": f"sentence_transformers.models.{name}",
        }
        for i, name in enumerate(_MODULES[: 3 if normalize else 2])
    ]
    size = {"word_embedding_dimension": model.config.hidden_size}
    limit = max_seqlen or model.config.max_position_embeddings
    files: dict[str, Any] = {
        "1_Pooling/config.json": {**size, **{flag: mode == pooling for mode, flag in _FLAGS.items()}},
        "sentence_bert_config.json": {"max_seq_length": limit, "do_lower_case": False},
        "config_sentence_transformers.json": {
            "prompts": {},
            "default_prompt_name": None,
            "similarity_fn_name": "cosine",
        },
        "modules.json": modules,  # last, for it says what the directory is
    }
    writers: dict[str, Callable[[Path], Any]] = {
        name: lambda path, value=value: path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
        for name, value in files.items()
    }
    saving.save_directory(model, target, model.config.to_dict(), found.tokenizer, writers)
    if normalize:
        (target / "2_Normalize").mkdir(exist_ok=True)
