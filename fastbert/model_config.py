"""What the configurations of all kinds of models share: Hugging Face's field names, labels, files. Without torch."""

from __future__ import annotations

import abc
import copy
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from typing_extensions import Self

from .errors import InputError
from .files import write_whole
from .hints import adapter_hint, download_hint, inner_hint, is_weights, run_hint
from .text_files import read_json
from .wording import dtype_name

_log = logging.getLogger("fastbert")

COMMON: dict[str, Any] = {
    "problem_type": None,
    "output_hidden_states": False,
    "return_dict": True,
    "dtype": None,
    "architectures": None,
}
"""Fields that every kind has, with their defaults."""

PROBLEM_TYPES = ("regression", "single_label_classification", "multi_label_classification")
_MAX_PARAMETERS = 10**11

OWN_ACTIVATION = "transformers_hidden_act"
"""The key of a bert_config.json written by `fastbert convert` that holds transformers' name of the activation:
google-research/bert calls the tanh approximation "gelu", which here is the exact function."""


def read_config_file(directory: str | os.PathLike[str]) -> tuple[Path, dict[str, Any]]:
    """Reads the config.json of a directory, or the file itself.

    Returns:
        the file's path, and its content.

    Raises:
        InputError: there is none, or it is not a JSON object.
    """
    path = Path(directory)
    if path.is_dir():
        # The second is google-research's, beside its TensorFlow checkpoints.
        names = ("config.json", "bert_config.json")
        path = next((path / name for name in names if (path / name).is_file()), path / names[0])
    if is_weights(path):
        raise InputError(f"{directory}: expected the directory of a model, got a file of weights: give its directory")
    if not path.is_file():
        hint = download_hint(directory) or run_hint(directory) or adapter_hint(directory) or inner_hint(directory)
        raise InputError(f"{directory}: expected a directory with a config.json, found none{hint}")
    values = read_json(path)
    if OWN_ACTIVATION in values:
        values["hidden_act"] = values.pop(OWN_ACTIVATION)
    return path, values


def wrong_type(known: str, got: Any) -> InputError:
    """The error for a config.json of an unsupported kind of model, with a hint if `fastbert convert` can help.

    Args:
        known: the kinds that are supported, for the message.
        got: the file's ``model_type``.
    """
    # BERTs whose parameters have other names, which `weights.kin` translates.
    kin = ("distilbert", "roberta", "xlm-roberta", "camembert", "electra")
    hint = "; `fastbert convert` makes a BERT of it" if got in kin else ""
    if got == "electra":
        hint += ", if its embeddings are as wide as its layers"
    return InputError(f"model_type must be {known}, got {got!r:.100}{hint}")


class ModelConfig(abc.ABC):
    """Base class of `BertConfig` and the other configurations; unknown keys are kept as attributes.

    A subclass defines ``model_type`` (as in config.json), ``defaults`` (its fields), ``limits`` (the integer fields and
    their upper bounds: a config.json may come from anywhere, and its sizes must not exhaust the machine's memory),
    ``num_parameters`` and ``validate``, which calls this class's at its end.
    """

    model_type: ClassVar[str]
    defaults: ClassVar[dict[str, Any]]
    limits: ClassVar[dict[str, int]]

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    max_position_embeddings: int | None
    initializer_range: float
    pad_token_id: int | None
    id2label: dict[int, str]
    label2id: dict[str, int]
    problem_type: str | None
    output_hidden_states: bool
    return_dict: bool
    dtype: str | None
    architectures: list[str] | None

    def __init__(self, **values: Any) -> None:
        model_type = values.pop("model_type", self.model_type)
        if model_type != self.model_type:
            raise wrong_type(repr(self.model_type), model_type)
        if "torch_dtype" in values:  # the name of ``dtype`` up to transformers 4
            torch_dtype = values.pop("torch_dtype")
            values.setdefault("dtype", torch_dtype)
        num_labels, id2label, label2id = (values.pop(name, None) for name in ("num_labels", "id2label", "label2id"))
        if id2label == {}:  # a model without a head, which transformers accepts too
            id2label = None
        # A file's key that is also an attribute of this class (head_dim) must not shadow it, but is written back.
        self._kept = {name: value for name, value in values.items() if hasattr(type(self), name)}
        for name, value in {**copy.deepcopy(self.defaults), **values}.items():
            if name not in self._kept:
                setattr(self, name, value)
        if self.dtype is not None:
            self.dtype = dtype_name(self.dtype)
        self._set_labels(num_labels, id2label, label2id)
        self.validate()

    def _set_labels(self, num_labels, id2label, label2id) -> None:
        """Sets the labels by their names, in whichever direction these are given, or else by their number."""
        if id2label is None and num_labels is None and isinstance(label2id, Mapping) and label2id:
            try:
                id2label = {int(index): name for name, index in label2id.items()}
            except (TypeError, ValueError, OverflowError) as error:
                raise InputError(f"label2id must map names to class ids, got {label2id!r:.100}") from error
        if id2label is None:
            self.num_labels = 2 if num_labels is None else num_labels
            return
        try:
            self.id2label = {int(index): str(name) for index, name in id2label.items()}
        except (AttributeError, TypeError, ValueError, OverflowError) as error:
            raise InputError(f"id2label must map class ids to names, got {id2label!r:.100}") from error
        if label2id is not None and not isinstance(label2id, Mapping):
            raise InputError(f"label2id must map names to class ids, got {label2id!r:.100}")
        if num_labels is not None and num_labels != len(self.id2label):
            raise InputError(f"num_labels is {num_labels}, but id2label names {len(self.id2label)} labels")
        self.label2id = dict(label2id) if label2id else {name: index for index, name in self.id2label.items()}

    @property
    def num_labels(self) -> int:
        """The number of a head's labels. Setting another number renames them LABEL_0, LABEL_1, ..."""
        return len(self.id2label)

    @num_labels.setter
    def num_labels(self, value: int) -> None:
        self._check_int("num_labels", value)
        if getattr(self, "id2label", None) is None or len(self.id2label) != value:
            self.id2label = {index: f"LABEL_{index}" for index in range(value)}
            self.label2id = {name: index for index, name in self.id2label.items()}

    @classmethod
    def _check_int(cls, name: str, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= cls.limits[name]:
            raise InputError(f"{name} must be an integer between 1 and {cls.limits[name]}, got {value!r:.100}")

    def _check_float(self, name: str, low: float, high: float, optional: bool = False) -> None:
        value = getattr(self, name)
        if value is None and optional:
            return
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            raise InputError(f"{name} must be a number between {low:g} and {high:g}, got {value!r:.100}")

    @abc.abstractmethod
    def validate(self) -> None:
        """Checks every field; raises InputError at the first that is not valid. This base method checks the common
        fields; subclasses call it after their own checks, since it computes the number of parameters from their fields.
        """
        if getattr(self, "add_cross_attention", False):
            raise InputError("add_cross_attention must be false: fastbert has no encoder-decoder models")
        if self.problem_type is not None and self.problem_type not in PROBLEM_TYPES:
            raise InputError(f"problem_type must be one of {', '.join(PROBLEM_TYPES)}, got {self.problem_type!r:.100}")
        if self.num_parameters() > _MAX_PARAMETERS:
            raise InputError(f"a model must have at most {_MAX_PARAMETERS} parameters, got {self.num_parameters()}")

    @abc.abstractmethod
    def num_parameters(self) -> int:
        """The number of parameters of the model without heads."""

    def __contains__(self, name: object) -> bool:
        """Whether there is a field or an unknown key of this name; PEFT's prompt tuning asks this."""
        return name in vars(self) or name in self._kept

    def to_dict(self) -> dict[str, Any]:
        """Every field and every unknown key, as in config.json."""
        values = {name: value for name, value in vars(self).items() if name != "_kept"}
        return {**copy.deepcopy({**self._kept, **values}), "model_type": self.model_type}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], **overrides: Any) -> Self:
        """Creates a configuration from the content of a config.json.

        Args:
            values: the content.
            overrides: fields that replace those in ``values``; ``num_labels`` without names renames the labels.

        Raises:
            InputError: a value does not fit.
        """
        merged = dict(values)
        if "num_labels" in overrides and "id2label" not in overrides:
            named = merged.get("id2label")
            if not isinstance(named, Mapping) or len(named) != overrides["num_labels"]:
                merged.pop("id2label", None)
                merged.pop("label2id", None)
        if "id2label" in overrides:
            merged.pop("num_labels", None)
            merged.pop("label2id", None)
        merged.update(overrides)
        if merged.get("id2label") and "num_labels" not in overrides:
            merged.pop("num_labels", None)  # old files hold both; the names decide
        return cls(**{str(name): copy.deepcopy(value) for name, value in merged.items()})

    @classmethod
    def from_hf(cls, config: Any) -> Self:
        """Creates a configuration from any object with the attributes of transformers' class; an object of this class
        is returned unchanged.

        Raises:
            InputError: it lacks these attributes, or a value is not valid.
        """
        if isinstance(config, cls):
            return config
        if isinstance(config, Mapping):
            return cls.from_dict(config)
        if hasattr(config, "to_dict"):
            values = config.to_dict()
        elif hasattr(config, "hidden_size"):
            values = {name: getattr(config, name) for name in (*cls.defaults, "num_labels") if hasattr(config, name)}
        else:
            raise InputError(f"a configuration must be a {cls.__name__}, got {type(config).__name__}")
        return cls.from_dict({name: value for name, value in values.items() if not name.startswith("_")})

    @classmethod
    def from_pretrained(cls, directory: str | os.PathLike[str], **overrides: Any) -> Self:
        """Reads the config.json of a directory (or the file itself); ``overrides`` replace its values.

        Raises:
            InputError: there is no such file, or a value does not fit.
        """
        path, values = read_config_file(directory)
        try:
            config = cls.from_dict(values, **overrides)
        except InputError as error:
            raise InputError(f"{path}: {error}") from error
        said, named = values.get("num_labels"), config.num_labels
        if said not in (None, named) and overrides.keys().isdisjoint(("num_labels", "id2label")):
            # As in transformers 4; in transformers 5 the number decides.
            _log.warning("%s: num_labels is %s, but id2label names %d: the names are used", path, said, named)
        return config

    def save_pretrained(self, directory: str | os.PathLike[str]) -> Path:
        """Writes config.json into a directory, which is created if needed, and returns the file's path."""
        path = Path(directory) / "config.json"
        write_whole(path, self.to_json_string())
        return path

    def to_json_string(self) -> str:
        """The content of config.json."""
        return json.dumps(self.to_dict(), indent=2, sort_keys=True, default=str) + "\n"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.to_dict() == other.to_dict()

    __hash__ = None

    def __repr__(self) -> str:
        return f"{type(self).__name__} {self.to_json_string()}"
