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
from ..weights.loading import canonical_keys, check_unquantized, load_into
from ..weights.misfit import padded_vocabulary
from ..weights.names import canonical_name
from ..weights.reading import read_state_dict, read_weights_file
from .sentence_files import transformer_directory

_log = logging.getLogger("fastbert")

# Layers below the classifier in heads other than BERT's: DistilBERT's, ELECTRA's, and the BiLSTM on frozen features.
# Such a classifier is meaningless on BERT's states, even if it has the same width.
_BEFORE_A_CLASSIFIER = ("pre_classifier.weight", "sequence_summary.summary.weight", "lstm.weight_ih_l0")
# The heads for a task, and the tensor by which each is recognised.
_TASK_HEADS = {
    "BertForSequenceClassification": "classifier.weight",
    "BertForTokenClassification": "classifier.weight",
    "BertForMultipleChoice": "classifier.weight",
    "BertForQuestionAnswering": "qa_outputs.weight",
}
# The classes, and the tensors that a file of each has; of a file that fits several it is the first. With a pooler, a
# classifier is taken for one of whole texts.
_CLASSES = (
    ("BertForPreTraining", ("cls.predictions.bias", "cls.seq_relationship.weight")),
    ("BertForMaskedLM", ("cls.predictions.bias",)),
    ("BertForNextSentencePrediction", ("cls.seq_relationship.weight",)),
    ("BertForQuestionAnswering", ("qa_outputs.weight",)),
    ("BertForSequenceClassification", ("classifier.weight", "bert.pooler.dense.weight")),
    ("BertForTokenClassification", ("classifier.weight",)),
    ("BertModel", ()),
)
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
    name = _head_class(values, state)
    changes = {**_num_labels(name, values, state), **_padded_vocabulary(values, state)}
    settings = BertConfig.from_dict(values, **changes)
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
            of_run = path.parent.parent / "model" / "config.json"  # of a checkpoint of `fastbert pretrain`
            known = f" {of_run}" if of_run.is_file() else ""
            raise InputError(
                f"{path}: expected {' or '.join(_CONFIGS)} beside the weights, found neither: give --config{known}"
            )
        path = found
    return read_bert_config(path).to_dict()


def _head_class(values: Mapping[str, Any], state: Mapping[str, Tensor]) -> str:
    """The class of the head in the file. Of several heads it is the one for a task that the configuration names, else
    the first of `_CLASSES`."""
    listed = values.get("architectures")
    named = str(listed[0]) if isinstance(listed, list) and listed else ""
    tensors = set(state)
    if not tensors.isdisjoint(_BEFORE_A_CLASSIFIER):
        tensors.discard("classifier.weight")
    if _TASK_HEADS.get(named) in tensors:
        return named
    return next(name for name, needed in _CLASSES if tensors.issuperset(needed))


def _num_labels(name: str, values: Mapping[str, Any], state: Mapping[str, Tensor]) -> dict[str, int]:
    """The num_labels of a classifier whose configuration names another number of labels; empty for any other model."""
    weight = state.get("classifier.weight")
    if name not in ("BertForSequenceClassification", "BertForTokenClassification") or weight.dim() != 2:
        return {}  # another shape is refused later
    labels = weight.shape[0]
    return {} if len(values.get("id2label") or ()) == labels else {"num_labels": labels}


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
