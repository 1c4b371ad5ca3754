"""Writes a directory in the form of google-research/bert: a TensorFlow checkpoint, bert_config.json, vocab.txt."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from torch import nn

from ..config import TANH_GELU, BertConfig
from ..data.tokenizer import load_tokenizer, vocab_size, vocab_text
from ..data.tokenizer_json import is_wordpiece
from ..errors import CheckpointError, InputError
from ..model_config import OWN_ACTIVATION
from ..weights import saving
from ..weights.foreign_names import to_tensorflow
from ..weights.tensor_bundle import index_bytes, shard_path, write_data
from .convert_source import Source

_log = logging.getLogger("fastbert")

_CHECKPOINT = "bert_model.ckpt"
# The keys of google-research/bert's bert_config.json.
_FIELDS = (
    *("attention_probs_dropout_prob", "hidden_act", "hidden_dropout_prob", "hidden_size", "initializer_range"),
    *("intermediate_size", "max_position_embeddings", "num_attention_heads", "num_hidden_layers", "type_vocab_size"),
    "vocab_size",
)
# What its code always computes, without a key for it.
_COMPUTES = {
    "layer_norm_eps": 1e-12,
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "bilstm_units": None,
}
# The activation's name in its code, whose last version computes the tanh form under it.
_GELU = "gelu"
# transformers' keys for what cannot be told from a head's tensors.
_HEAD_FIELDS = ("id2label", "label2id", "problem_type")
# Those of the file that a model was read from, which are not true of another.
_OF_FILES = ("architectures", "model_type", "dtype", "torch_dtype", "transformers_version", "_name_or_path")


def write_tensorflow(found: Source, target: Path) -> None:
    """Writes a directory in the form of google-research/bert: ``bert_model.ckpt.*``, bert_config.json, vocab.txt.

    There is no ``.meta`` file, which is a graph that its code does not read.

    Raises:
        CheckpointError: its code cannot compute the model, or a file cannot be written.
        InputError: the tokenizer has ids beyond the model's vocab_size.
    """
    model = found.model
    values = model.config.to_dict()
    for name, only in _COMPUTES.items():
        if values.get(name, only) != only:
            raise CheckpointError(
                f"google-research/bert computes with {name} {only} only, got a model with {values[name]}"
            )
    prefix = "" if hasattr(model, "bert") else "bert."
    tensors = to_tensorflow({f"{prefix}{name}": t for name, t in saving.tensors_of(model).items()})
    entries: dict = {}

    def write_tensors(path: Path) -> None:
        with path.open("wb") as file:
            entries.update(write_data(tensors, file))

    writers: dict[str, saving.Writer] = {
        # In this order, since the index describes the data that were written.
        shard_path(_CHECKPOINT, 0, 1).name: write_tensors,
        f"{_CHECKPOINT}.index": lambda path: path.write_bytes(index_bytes(entries)),
        "bert_config.json": saving.config_writer(_config(model)),
    }
    copies = {file.name: saving.copy_writer(file) for file in saving.tokenizer_files(found.tokenizer)}
    saving.write_all(target, {**writers, **_vocabulary(found), **copies})


def _config(model: nn.Module) -> dict[str, Any]:
    """The content of bert_config.json, with activations that google-research/bert supports.

    Its code ignores further keys, from which fastbert restores the original model.
    """
    values = model.config.to_dict()
    config = {name: values[name] for name in _FIELDS}
    if config["hidden_act"] in TANH_GELU:
        config[OWN_ACTIVATION] = config["hidden_act"]
    if hasattr(model, "classifier"):
        config |= {"architectures": [type(model).__name__], **{name: values[name] for name in _HEAD_FIELDS}}
    # Whatever else is not as by default: the options and statistics of a fine-tuning, on which predictions depend.
    usual = BertConfig().to_dict()
    others = values.keys() - config.keys() - set(_OF_FILES)
    config |= {name: values[name] for name in sorted(others) if values[name] != usual.get(name)}
    return {**config, "hidden_act": _GELU}


def _vocabulary(found: Source) -> dict[str, saving.Writer]:
    """A function that writes vocab.txt, the only file that google-research/bert reads, if the source has only
    tokenizer.json; otherwise none."""
    files = {file.name: file for file in saving.tokenizer_files(found.tokenizer)}
    if "vocab.txt" in files or "tokenizer.json" not in files:
        return {}
    try:
        tokenizer = load_tokenizer(files["tokenizer.json"])
    except InputError as error:
        _log.warning("no vocab.txt is written: %s", error)
        return {}
    if not is_wordpiece(tokenizer):
        kind = type(tokenizer.model).__name__
        _log.warning("no vocab.txt is written: expected a tokenizer of WordPieces, got a %s tokenizer", kind)
        return {}
    rows, ids = found.model.config.vocab_size, vocab_size(tokenizer)
    if ids > rows:
        raise InputError(f"{files['tokenizer.json']}: expected ids below the model's vocab_size, {rows}, got {ids - 1}")
    return {"vocab.txt": saving.text_writer(vocab_text(tokenizer))}
