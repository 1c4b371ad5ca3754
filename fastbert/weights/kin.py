"""Reads models that compute what BERT does, with other names and tables: DistilBERT, RoBERTa and the like, ELECTRA."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import Tensor

from ..config import BertConfig
from ..errors import CheckpointError, InputError
from ..model_config import read_config_file
from . import distilbert, electra, roberta
from .names import own_names

_CLASS = re.compile(r"(?:DistilBert|Electra|XLMRoberta|Roberta|Camembert)(Model|For\w+)")


def read_bert_config(directory: str | os.PathLike) -> BertConfig:
    """The configuration in the directory of a BERT or of one of these models, translated to BERT's fields.

    Raises:
        InputError: there is none, or it is not valid.
    """
    path, values = read_config_file(directory)
    kind = values.get("model_type")
    try:
        return BertConfig.from_dict(_bert_values(kind, values))
    except InputError as error:
        reason = str(error)
        field, _, rest = reason.partition(" ")
        if kind == "distilbert" and field in distilbert.FIELDS:  # the message names BERT's field, not that of the file
            reason = f"{distilbert.FIELDS[field]} (BERT's {field}) {rest}"
        raise InputError(f"{path}: {reason}") from error


def _family_of(kind: Any) -> ModuleType | None:
    """The module for models of this type, None for a BERT."""
    return next((family for family in (distilbert, electra, roberta) if kind in family.MODEL_TYPES), None)


def _bert_values(kind: Any, values: dict[str, Any]) -> dict[str, Any]:
    family = _family_of(kind)
    if family is None:
        return values
    ours = family.bert_values(values)
    if isinstance(ours.get("architectures"), list):
        ours["architectures"] = [_CLASS.sub(r"Bert\1", str(name)) for name in ours["architectures"]]
    return ours


def as_bert(state: Mapping[str, Tensor], config: Path) -> Mapping[str, Tensor]:
    """Converts the tensors of models that only the configuration tells from a BERT, whatever wrappers they were saved
    in. (DistilBERT's are recognised by their names in `loading.canonical_keys`, which also converts a BERT's.)

    Args:
        state: the tensors.
        config: the config.json, or the directory that may have one.

    Raises:
        CheckpointError: the tensors cannot be those of the model that it describes.
    """
    path = config / "config.json" if config.is_dir() else config
    values: dict[str, Any] = read_config_file(path)[1] if path.is_file() else {}
    family = _family_of(values.get("model_type"))
    if family is None:
        return state
    try:
        state = own_names(state, family.PREFIX)
        return roberta.from_roberta(state, values) if family is roberta else state
    except CheckpointError as error:
        raise CheckpointError(f"{path.parent}: {error}") from error
