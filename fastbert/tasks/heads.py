"""The classes of a model's head: what they are called, and which row of the classifier is whose."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import InputError
from .files import shorten

if TYPE_CHECKING:
    from ..model_config import ModelConfig
    from ..models.pretrained import PreTrainedModel

_log = logging.getLogger("fastbert")


def class_names(config: ModelConfig) -> list[str]:
    """The names of a model's classes, by their ids.

    Raises:
        InputError: ids that leave some out: which class the others are, nobody can say.
    """
    names = {int(index): str(name) for index, name in config.id2label.items()}
    if sorted(names) != list(range(len(names))):
        ids = shorten(", ".join(map(str, sorted(names))))
        raise InputError(f"expected an id2label whose class ids are 0 to {len(names) - 1}, got {ids}")
    return [names[index] for index in range(len(names))]


def unnamed(names: Sequence[str]) -> bool:
    """Whether classes have the names that transformers gives by default."""
    return all(re.fullmatch(r"LABEL_\d+", name, re.IGNORECASE) for name in names)


def order_of(names: Sequence[str], own: Sequence[Sequence[str]]) -> list[int] | None:
    """For each of a model's classes the number of the task's class of that name, in capitals or not; None if these are
    not the task's classes.

    Args:
        names: those of the model's classes.
        own: the names that the task's classes may have, in their order.
    """
    for mine in own:
        for spelt in (str, str.lower):  # classes may differ in capitals alone
            theirs, ours = list(map(spelt, names)), list(map(spelt, mine))
            if len(set(theirs)) == len(theirs) and sorted(theirs) == sorted(ours):
                return [ours.index(name) for name in theirs]
    return None


def match_rows(model: PreTrainedModel, directory: str | os.PathLike, own: Sequence[Sequence[str]]) -> None:
    """Puts the rows of a classifier that was loaded into the order of the task's classes, by the names in the
    directory. Classes of other names belong to another question: the classifier gets new weights, with a warning. Where
    the directory or the task has no names but numbers, nothing is changed.

    Args:
        model: as it was loaded, with a ``classifier`` of a row for each of the task's classes.
        directory: that of the model.
        own: as in `order_of`; the first are the names in the model's configuration.
    """
    import torch

    if "classifier.weight" in model.load_report.missing:
        return
    names, [mine, *_] = _names_in(directory), own
    order = order_of(names, own)
    with torch.no_grad():
        if order is not None:
            for rows in model.classifier.parameters():
                rows[order] = rows.clone()
        elif len(names) == len(mine) and not (_are_numbers(names) or _are_numbers(mine)):
            _renew(
                model,
                f"{directory}: expected a head whose classes are {shorten(', '.join(mine))}, got one of "
                f"{shorten(', '.join(names))}, which answers another question",
            )


def match_place(model: PreTrainedModel, directory: str | os.PathLike) -> None:
    """Gives a classifier that was loaded new weights, with a warning, if in the directory it stood on something else: a
    BiLSTM's states are not those of the model, though both may have the same width.

    Args:
        model: as it was loaded.
        directory: that of the model.
    """
    before, now = map(_place, (_config_in(directory), model.config))
    if before != now:
        _renew(model, f"{directory}: expected a head on {now}, got one on {before}")


def _place(config: ModelConfig) -> str:
    """What the classifier of a model reads."""
    if getattr(config, "feature_layers", None) is not None:
        return "a BiLSTM on features"
    return "the model itself" if getattr(config, "bilstm_units", None) is None else "a BiLSTM on the model"


def _renew(model: PreTrainedModel, reason: str) -> None:
    """Gives a classifier new weights and says so with the reason, if anything of it was loaded."""
    missing = model.load_report.missing
    new = [name for name, _ in model.named_parameters() if name.startswith("classifier.") and name not in missing]
    if new:
        model.classifier.apply(model._init_weights)
        model.load_report = dataclasses.replace(model.load_report, missing=(*missing, *new))
        _log.warning("%s: the classifier is newly initialised", reason)


def _config_in(directory: str | os.PathLike) -> ModelConfig:
    from ..models.encoders import read_config
    from ..weights.loading import warnings_held

    with warnings_held():  # the configuration was read before
        return read_config(directory)


def _names_in(directory: str | os.PathLike) -> list[str]:
    """The names of the classes in a model's directory; none if some have no id."""
    with contextlib.suppress(InputError):
        return class_names(_config_in(directory))
    return []


def _are_numbers(names: Sequence[str]) -> bool:
    """Whether classes are called by their ids, which tell nothing of what they are."""
    return unnamed(names) or list(names) == [str(number) for number in range(len(names))]
