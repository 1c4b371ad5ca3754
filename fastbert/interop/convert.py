"""A model from any of the forms that BERTs are published in, to any of those that others read."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .. import models
from ..config import TANH_GELU, BertConfig
from ..data.tokenizer import load_tokenizer, vocab_size, vocab_text
from ..data.tokenizer_json import is_wordpiece
from ..errors import CheckpointError, InputError
from ..files import check_new, not_downloaded
from ..model_config import OWN_ACTIVATION
from ..weights import saving
from ..weights.distilbert import read_bert_config
from ..weights.foreign_names import to_tensorflow
from ..weights.loading import canonical_keys, check_unquantized, load_into, padded_vocabulary
from ..weights.names import canonical_name
from ..weights.reading import PICKLE, read_state_dict, read_weights_file
from ..weights.tensor_bundle import index_bytes, shard_path, write_data
from .convert_sentence import parts_beside
from .sentence_files import model_directory

_log = logging.getLogger("fastbert")

FORMATS = ("safetensors", "pickle", "tf1", "onnx", "sentence-transformers")
_CONFIGS = ("config.json", "bert_config.json")
_TF1 = "bert_model.ckpt"


@dataclass(frozen=True)
class Source:
    """A model as it was found.

    Args:
        model: in the dtype of the file, tensor by tensor, and in evaluation mode.
        tokenizer: where its tokenizer's files may be.
        unused: names of the file that the model has no place for.
        directory: the one that was named: the tokenizer's, or a sentence-transformers directory around it.
        left_out: what a sentence-transformers directory has beside its model that the written form has no place for.
    """

    model: nn.Module
    tokenizer: Path
    unused: tuple[str, ...]
    directory: Path
    left_out: tuple[str, ...] = ()


def convert(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    to: str = "safetensors",
    config: str | os.PathLike[str] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Source:
    """Reads a model and writes it in another form; tensors keep their bits.

    Args:
        source: a Hugging Face directory (safetensors, pickle, sharded or whole), a directory with a TensorFlow
            checkpoint, its prefix (``.../bert_model.ckpt``), or one file of weights.
        target: the directory to write, or the file for "onnx".
        to: one of `FORMATS`.
        config: the file of the configuration, if it is not beside the weights.
        options: further keywords for the format's writer, such as ``pooling``.

    Returns:
        the model as it was read, and what of the source was not written.

    Raises:
        InputError: there is no configuration, or it does not fit; or the directory to write is not empty.
        CheckpointError: weights are missing or damaged, or the format cannot hold them; nothing is written then.
    """
    if to not in FORMATS:
        raise InputError(f"a format must be one of {', '.join(FORMATS)}, got {to!r:.50}")
    if to != "onnx":
        if Path(target).suffix == ".onnx":
            raise InputError(f"{target}: expected a directory to write as {to}, got an ONNX file's name: add --to onnx")
        _check_there(Path(source))  # before: of two that were swapped, the model is in the way
        check_new(target)
    found = read_model(source, config)
    if to != "sentence-transformers":
        found = replace(found, left_out=parts_beside(found.directory))
    _writer(to)(found, Path(target), **(options or {}))
    return found


def _writer(to: str) -> Callable[..., None]:
    if to == "onnx":
        from .convert_onnx import write_onnx

        return write_onnx
    if to == "sentence-transformers":
        from .convert_sentence import write_sentence_transformers

        return write_sentence_transformers
    return {"safetensors": write_safetensors, "pickle": write_pickle, "tf1": write_tf1}[to]


# --- reading ---


def read_model(source, config=None) -> Source:
    """The model in a directory or file, under the class that its tensors say.

    Args:
        source: what `convert` takes.
        config: a config.json or bert_config.json in place of the one beside the weights.

    Returns:
        the model with the file's dtypes, and what was left out.

    Raises:
        InputError: no configuration, or it does not fit.
        CheckpointError: weights are missing or damaged.
    """
    source = Path(source)
    state, home = _read_state(source)
    state = canonical_keys(state)
    values = _read_config(home if config is None else Path(config))
    name, changes = _architecture(values, state)
    settings = BertConfig.from_dict(values, **changes, **_padded_vocabulary(values, state))
    check_unquantized(settings, source)
    with torch.device("meta"):
        if name == "BertModel":
            model: nn.Module = models.BertModel(settings, add_pooling_layer="bert.pooler.dense.weight" in state)
        else:
            model = getattr(models, name)(settings)
    _take_dtypes(model, state)
    report = load_into(model, state, source=source)
    if report.missing:
        raise CheckpointError(
            f"{source}: expected every weight of a {name}, got none for {', '.join(report.missing[:5])}"
        )
    if hasattr(model, "tie_weights"):
        model.tie_weights()
    return Source(model.eval(), home, report.unexpected, source if source.is_dir() else home)


def _check_there(source: Path) -> None:
    """Raises CheckpointError where there is nothing to read."""
    if not (source.is_dir() or source.is_file() or source.with_name(f"{source.name}.index").is_file()):
        hint = not_downloaded(source)
        raise CheckpointError(f"{source}: expected a directory, a checkpoint or a file of weights, found nothing{hint}")


def _read_state(source: Path) -> tuple[dict[str, Tensor], Path]:
    _check_there(source)
    if source.is_dir():
        home = model_directory(source)
        return read_state_dict(home), home
    return read_weights_file(source), source.parent


def _read_config(path: Path) -> dict[str, Any]:
    """The values of a configuration, Hugging Face's, DistilBERT's too, or google-research's."""
    if path.is_dir():
        found = next((path / name for name in _CONFIGS if (path / name).is_file()), None)
        if found is None:
            raise InputError(
                f"{path}: expected {' or '.join(_CONFIGS)} beside the weights, found neither: give --config"
            )
        path = found
    return read_bert_config(path).to_dict()


def _architecture(values: dict[str, Any], state: Mapping[str, Tensor]) -> tuple[str, dict[str, Any]]:
    """The class whose head the file holds, and what its configuration must say differently."""
    mlm, nsp = (f"cls.{part}" in state for part in ("predictions.bias", "seq_relationship.weight"))
    if mlm or nsp:
        return (
            "BertForPreTraining" if mlm and nsp else "BertForMaskedLM" if mlm else "BertForNextSentencePrediction"
        ), {}
    if "qa_outputs.weight" in state:
        return "BertForQuestionAnswering", {}
    if "classifier.weight" not in state:
        return "BertModel", {}
    # Three heads call their layer the same: the file's own word, else a pooler says that it reads whole texts.
    listed = values.get("architectures")
    named = listed[0] if isinstance(listed, list) and listed else None
    heads = ("BertForSequenceClassification", "BertForTokenClassification", "BertForMultipleChoice")
    pooled = "bert.pooler.dense.weight" in state
    name = named if named in heads else heads[0] if pooled else heads[1]
    if name == "BertForMultipleChoice" or state["classifier.weight"].dim() != 2:  # which no head's is: refused later
        return name, {}
    labels = state["classifier.weight"].shape[0]
    return name, {} if len(values.get("id2label") or ()) == labels else {"num_labels": labels}


def _padded_vocabulary(values: dict[str, Any], state: Mapping[str, Tensor]) -> dict[str, int]:
    """The vocab_size of a file whose word embeddings were padded, which keep their rows; nothing of any other file."""
    words, size = state.get("bert.embeddings.word_embeddings.weight"), values["vocab_size"]
    if words is None or words.dim() != 2 or not padded_vocabulary(rows := words.shape[0], size):
        return {}
    _log.warning("the word embeddings have %d rows, of which the configuration knows %d: padding, kept", rows, size)
    return {"vocab_size": rows}


def _take_dtypes(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Gives each parameter on the meta device the dtype that its tensor has in the file."""
    made: dict[int, nn.Parameter] = {}
    for name, parameter in list(model.named_parameters(remove_duplicate=False)):
        tensor = state.get(canonical_name(name))
        if id(parameter) not in made and tensor is not None and tensor.is_floating_point():
            made[id(parameter)] = nn.Parameter(torch.empty(parameter.shape, dtype=tensor.dtype, device="meta"))
    for name, parameter in list(model.named_parameters(remove_duplicate=False)):
        if id(parameter) in made:
            owner, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(owner), leaf, made[id(parameter)])


# --- writing ---


def _config_text(model: nn.Module, **changes: Any) -> str:
    return json.dumps({**model.config.to_dict(), **changes}, indent=2, sort_keys=True, default=str) + "\n"


def _dtype_name(model: nn.Module) -> str:
    return str(next(model.parameters()).dtype).removeprefix("torch.")


def _copies(found: Source) -> dict[str, Callable[[Path], Any]]:
    files = saving.tokenizer_files(found.tokenizer)
    return {file.name: lambda path, file=file: path.write_bytes(file.read_bytes()) for file in files}


def write_safetensors(found: Source, target: Path) -> None:
    """A Hugging Face directory."""
    saving.save_directory(found.model, target, found.model.config.to_dict(), found.tokenizer)


def write_pickle(found: Source, target: Path) -> None:
    """A Hugging Face directory as it was before safetensors."""
    model = found.model
    state = saving.tensors_of(model)
    # Older releases of transformers want every name of a tied tensor.
    names = {id(p): state[n] for n, p in model.state_dict(keep_vars=True).items() if n in state}
    whole = {n: names[id(p)] for n, p in model.state_dict(keep_vars=True).items() if id(p) in names}
    text = _config_text(model, architectures=[type(model).__name__], torch_dtype=_dtype_name(model))
    writers: dict[str, Callable[[Path], Any]] = {
        PICKLE: lambda path: _save_pickle(whole, path),
        "config.json": lambda path: path.write_text(text, encoding="utf-8"),
    }
    saving.write_all(target, {**writers, **saving.tokenizer_writers(found.tokenizer)})


def _save_pickle(state: Mapping[str, Tensor], path: Path) -> None:
    try:
        with path.open("wb") as file:
            torch.save(state, file)
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):  # torch ends in an error of its own where the disk is full
            raise error.__context__ from None
        raise


_GOOGLE_FIELDS = (
    *("attention_probs_dropout_prob", "hidden_act", "hidden_dropout_prob", "hidden_size", "initializer_range"),
    *("intermediate_size", "max_position_embeddings", "num_attention_heads", "num_hidden_layers", "type_vocab_size"),
    "vocab_size",
)


# What its code does without a field that says so.
_GOOGLE_COMPUTES = {
    "layer_norm_eps": 1e-12,
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "bilstm_units": None,
}
# What its code calls the activation; its last version computes the tanh form by this name.
_GOOGLE_GELU = "gelu"


# Transformers' names for what a head's tensors do not say.
_HEAD_FIELDS = ("id2label", "label2id", "problem_type")


def _google_config(model: nn.Module) -> dict[str, Any]:
    """The content of bert_config.json, whose activations are those that google-research/bert knows.

    Its code passes other keys over; by them a model is read here as it was.
    """
    values = model.config.to_dict()
    config = {name: values[name] for name in _GOOGLE_FIELDS}
    if config["hidden_act"] in TANH_GELU:
        config[OWN_ACTIVATION] = config["hidden_act"]
    if hasattr(model, "classifier"):
        config |= {"architectures": [type(model).__name__], **{name: values[name] for name in _HEAD_FIELDS}}
    return {**config, "hidden_act": _GOOGLE_GELU}


def _google_vocabulary(found: Source) -> dict[str, Callable[[Path], Any]]:
    """A writer of vocab.txt, which is all that google-research/bert reads, where the source has only tokenizer.json."""
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
    text = vocab_text(tokenizer)
    return {"vocab.txt": lambda path: path.write_text(text, encoding="utf-8")}


def write_tf1(found: Source, target: Path) -> None:
    """A directory as google-research/bert publishes them: ``bert_model.ckpt.*``, bert_config.json, vocab.txt.

    Without the ``.meta`` file, a graph that its code does not read.
    """
    model = found.model
    values = model.config.to_dict()
    for name, only in _GOOGLE_COMPUTES.items():
        if values.get(name, only) != only:
            raise CheckpointError(
                f"google-research/bert computes with {name} {only} only, got a model with {values[name]}"
            )
    prefix = "" if hasattr(model, "bert") else "bert."
    tensors = to_tensorflow({f"{prefix}{name}": t for name, t in saving.tensors_of(model).items()})
    config = _google_config(model)
    entries: dict = {}

    def write_tensors(path: Path) -> None:
        with path.open("wb") as file:
            entries.update(write_data(tensors, file))

    text = json.dumps(config, indent=2, sort_keys=True) + "\n"
    writers: dict[str, Callable[[Path], Any]] = {
        # In this order: the index says what the data were.
        shard_path(_TF1, 0, 1).name: write_tensors,
        f"{_TF1}.index": lambda path: path.write_bytes(index_bytes(entries)),
        "bert_config.json": lambda path: path.write_text(text, encoding="utf-8"),
    }
    saving.write_all(target, {**writers, **_google_vocabulary(found), **_copies(found)})


__all__ = ["FORMATS", "Source", "convert", "read_model"]
