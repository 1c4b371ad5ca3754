"""Writes a sentence-transformers directory: the model, how its tokens are pooled, whether vectors are normalised."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..files import read_json
from . import saving
from .sentence_encoder import read_settings

POOLINGS = ("mean", "cls", "max")
# The names under which every release so far reads its modules.
_MODULES = ("Transformer", "Pooling", "Normalize")
_CONFIG = "config_sentence_transformers.json"
_FLAGS = {"cls": "pooling_mode_cls_token", "mean": "pooling_mode_mean_tokens", "max": "pooling_mode_max_tokens"}


def write_sentence_transformers(
    found,
    target: Path,
    *,
    pooling: str | None = None,
    normalize: bool | None = None,
    max_seqlen: int | None = None,
) -> None:
    """The encoder of a model as a directory for `SentenceTransformer` and for our `SentenceEncoder`.

    What is not given is as the source has it where that is such a directory, with its prompts and what else it says.

    Args:
        found: a `Source`; a head on its encoder is left out.
        pooling: how the vectors of a text's tokens become one; "mean" for a plain model.
        normalize: whether vectors are scaled to length 1; so for a plain model.
        max_seqlen: longer texts are cut; for a plain model the tokenizer's limit or the model's own.

    Raises:
        InputError: an unknown pooling, no tokenizer beside the weights, a source that computes its vectors in a way
            that is not supported, or a max_seqlen out of range.
    """
    if pooling is not None and pooling not in POOLINGS:
        raise InputError(f"pooling must be one of {', '.join(POOLINGS)}, got {pooling!r:.50}")
    if not saving.tokenizer_files(found.tokenizer):
        raise InputError(f"{found.tokenizer}: expected the tokenizer's files beside the weights, found none")
    source = read_settings(found.tokenizer)
    if normalize is None:
        normalize = source.normalize or source.pooling_file is None
    longest = found.model.config.max_position_embeddings
    if max_seqlen is None:
        max_seqlen = min(source.max_seqlen or longest, longest)
    elif type(max_seqlen) is not int or not 3 <= max_seqlen <= longest:
        raise InputError(
            f"max_seqlen must be a whole number between 3 and the model's longest input, {longest}, got "
            f"{max_seqlen!r:.50}"
        )
    model = getattr(found.model, "bert", found.model)
    modules = [
        {
            "idx": i,
            "name": str(i),
            "path": "" if i == 0 else f"{i}_{name}",
            "type": f"sentence_transformers.models.{name}",
        }
        for i, name in enumerate(_MODULES[: 3 if normalize else 2])
    ]
    if pooling is None and source.pooling_file is not None:
        pooled = read_json(source.pooling_file)
    else:
        flags = {flag: mode == (pooling or "mean") for mode, flag in _FLAGS.items()}
        pooled = {"word_embedding_dimension": model.config.hidden_size, **flags}
    config = {"prompts": {}, "default_prompt_name": None, "similarity_fn_name": "cosine"}
    config_file = found.tokenizer / _CONFIG
    files: dict[str, Any] = {
        "1_Pooling/config.json": pooled,
        "sentence_bert_config.json": {"max_seq_length": max_seqlen, "do_lower_case": source.do_lower_case},
        _CONFIG: {**config, **(read_json(config_file) if config_file.is_file() else {})},
        "modules.json": modules,  # last, for it says what the directory is
    }
    writers: dict[str, Callable[[Path], Any]] = {
        name: lambda path, value=value: path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
        for name, value in files.items()
    }
    saving.save_directory(model, target, model.config.to_dict(), found.tokenizer, writers)
    if normalize:
        (target / "2_Normalize").mkdir(exist_ok=True)
