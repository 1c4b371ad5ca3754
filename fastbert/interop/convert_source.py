"""Reading the model to convert, from any of the formats in which BERTs are published."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .. import models
from ..config import BertConfig
from ..errors import CheckpointError, InputError
from ..hints import download_hint
from ..weights.kin import as_bert, read_bert_config
from ..weights.loading import canonical_keys, check_unquantized, load_into, padded_vocabulary
from ..weights.names import canonical_name
from ..weights.reading import read_state_dict, read_weights_file
from .sentence_files import transformer_directory

_log = logging.getLogger("fastbert")

# Layers below the classifier in heads other than BERT's: DistilBERT's, ELECTRA's, and the BiLSTM on frozen features.
# Such a classifier is meaningless on BERT's states, even if it has the same width.
_BEFORE_A_CLASSIFIER = ("pre_classifier.weight", "sequence_summary.summary.weight", "lstm.weight_ih_l0")
_CONFIGS = ("config.json", "bert_config.json")


@dataclass(frozen=True)
class Source:
    """A model that was read.

    Args:
        model: in evaluation mode; each tensor has its dtype in the file.
        tokenizer: the directory that may contain the tokenizer's files.
        unused: names of tensors in the file that the model does not have.
        directory: the directory that was given: the tokenizer's, or a sentence-transformers directory around it.
        left_out: parts of a sentence-transformers directory that the target format cannot contain.
    """

    model: nn.Module
    tokenizer: Path
    unused: tuple[str, ...]
    directory: Path
    left_out: tuple[str, ...] = ()


def read_model(source, config=None) -> Source:
    """Reads the model in a directory or file, as an object of the class that its tensors belong to.

    Args:
        source: as in `convert`.
        config: the path of a config.json or bert_config.json; None for the one beside the weights.

    Returns:
        the model with the file's dtypes, and what was not used.

    Raises:
        InputError: there is no configuration, or it is not supported.
        CheckpointError: weights are missing or damaged.
    """
    source = Path(source)
    if config is not None and not Path(config).exists():
        raise InputError(f"{config}: expected the configuration of {source}, found no such file")
    state, home = _read_state(source)
    described = home if config is None else Path(config)
    state = canonical_keys(as_bert(state, described))
    values = _read_config(described)
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


def check_there(source: Path) -> None:
    """Raises CheckpointError if there is nothing to read."""
    if not (source.is_dir() or source.is_file() or source.with_name(f"{source.name}.index").is_file()):
        hint = download_hint(source)
        raise CheckpointError(f"{source}: expected a directory, a checkpoint or a file of weights, found nothing{hint}")


def _read_state(source: Path) -> tuple[dict[str, Tensor], Path]:
    check_there(source)
    if source.is_dir():
        home = transformer_directory(source)
        return read_state_dict(home), home
    return read_weights_file(source), source.parent


def _read_config(path: Path) -> dict[str, Any]:
    """The values of a configuration of Hugging Face, also for models related to BERT, or of google-research."""
    if path.is_dir():
        found = next((path / name for name in _CONFIGS if (path / name).is_file()), None)
        if found is None:
            raise InputError(
                f"{path}: expected {' or '.join(_CONFIGS)} beside the weights, found neither: give --config"
            )
        path = found
    return read_bert_config(path).to_dict()


def _architecture(values: dict[str, Any], state: Mapping[str, Tensor]) -> tuple[str, dict[str, Any]]:
    """The class of the head in the file, and changes to its configuration. Of several heads it is the one for a task
    that the configuration names, else that of pre-training."""
    listed = values.get("architectures")
    named = listed[0] if isinstance(listed, list) and listed else None
    heads = ("BertForSequenceClassification", "BertForTokenClassification", "BertForMultipleChoice")
    classifies = "classifier.weight" in state and not any(name in state for name in _BEFORE_A_CLASSIFIER)
    named_classifier = classifies and named in heads
    answers = "qa_outputs.weight" in state and not named_classifier
    mlm, nsp = (f"cls.{part}" in state for part in ("predictions.bias", "seq_relationship.weight"))
    if (mlm or nsp) and not named_classifier and not (answers and named == "BertForQuestionAnswering"):
        return (
            "BertForPreTraining" if mlm and nsp else "BertForMaskedLM" if mlm else "BertForNextSentencePrediction"
        ), {}
    if answers:
        return "BertForQuestionAnswering", {}
    if not classifies:
        return "BertModel", {}
    # Three heads use the same name for their layer. The configuration's class name decides; without one, a pooler means
    # that the head classifies whole texts.
    pooled = "bert.pooler.dense.weight" in state
    name = named if named in heads else heads[0] if pooled else heads[1]
    if name == "BertForMultipleChoice" or state["classifier.weight"].dim() != 2:  # such a shape is refused later
        return name, {}
    labels = state["classifier.weight"].shape[0]
    return name, {} if len(values.get("id2label") or ()) == labels else {"num_labels": labels}


def _padded_vocabulary(values: dict[str, Any], state: Mapping[str, Tensor]) -> dict[str, int]:
    """The vocab_size for a file with padded word embeddings, whose rows are all kept; empty for any other file."""
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
