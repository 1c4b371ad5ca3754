"""What a BERT looks like: sizes, rates and labels, under Hugging Face's names. No torch here."""

from __future__ import annotations

import copy
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .errors import InputError

# "gelu" is the exact one (error function); the original google-research code computes the tanh approximation.
ERF_GELU = ("gelu", "gelu_python")
TANH_GELU = ("gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_python_tanh")

# Upper bounds: a config.json comes from outside, and a size in it must not make us allocate the machine away.
_LIMITS = {
    "vocab_size": 1 << 24,
    "hidden_size": 1 << 16,
    "num_hidden_layers": 1024,
    "num_attention_heads": 1024,
    "intermediate_size": 1 << 18,
    "max_position_embeddings": 1 << 20,
    "type_vocab_size": 1 << 16,
    "num_labels": 100_000,
}
_MAX_PARAMETERS = 10**11
_MAX_CONFIG_BYTES = 16 << 20

# Table 6 of the BERT paper as LxHxA, and the names of Google's miniatures.
PAPER_SIZES = ("3x768x12", "6x768x3", "6x768x12", "12x768x12", "12x1024x16", "24x1024x16")
MINIATURE_SIZES = tuple(f"{layers}x{hidden}" for layers in (2, 4, 6, 8, 10, 12) for hidden in (128, 256, 512, 768))
_ALIASES = {
    "tiny": "2x128",
    "mini": "4x256",
    "small": "4x512",
    "medium": "8x512",
    "base": "12x768x12",
    "large": "24x1024x16",
}
_NAME = re.compile(r"(?:l-)?(\d+)(?:x|_h-)(\d+)(?:(?:x|_a-)(\d+))?")

_DEFAULTS: dict[str, Any] = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "initializer_range": 0.02,
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
    "use_cache": True,
    "classifier_dropout": None,
    "is_decoder": False,
    "add_cross_attention": False,
    "bos_token_id": None,
    "eos_token_id": None,
    "tie_word_embeddings": True,
    "problem_type": None,
    "output_hidden_states": False,
    "output_attentions": False,
    "return_dict": True,
    "chunk_size_feed_forward": 0,
    "dtype": None,
    "architectures": None,
}


class BertConfig:
    """The shape of a BERT, with Hugging Face's field names and defaults; keys it does not know are kept as attributes.

    Args:
        values: any field of transformers' BertConfig; ``num_labels`` (or ``id2label``) for heads with labels.

    Raises:
        InputError: a value out of range, or a feature that is not an encoder's (relative positions, cross-attention).
    """

    model_type = "bert"

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    hidden_act: str
    hidden_dropout_prob: float
    attention_probs_dropout_prob: float
    max_position_embeddings: int
    type_vocab_size: int
    initializer_range: float
    layer_norm_eps: float
    pad_token_id: int | None
    use_cache: bool
    classifier_dropout: float | None
    is_decoder: bool
    add_cross_attention: bool
    bos_token_id: int | None
    eos_token_id: int | list[int] | None
    tie_word_embeddings: bool
    problem_type: str | None
    output_hidden_states: bool
    output_attentions: bool
    return_dict: bool
    chunk_size_feed_forward: int
    dtype: str | None
    architectures: list[str] | None
    id2label: dict[int, str]
    label2id: dict[str, int]

    def __init__(self, **values: Any) -> None:
        model_type = values.pop("model_type", "bert")
        if model_type != "bert":
            raise InputError(f"model_type must be 'bert', got {model_type!r}")
        if "torch_dtype" in values:  # the name of ``dtype`` up to transformers 4
            torch_dtype = values.pop("torch_dtype")
            values.setdefault("dtype", torch_dtype)
        num_labels, id2label, label2id = (values.pop(name, None) for name in ("num_labels", "id2label", "label2id"))
        # A file's key that is also a name of this class (head_dim) is kept to be written back, and shadows nothing.
        self._kept = {name: value for name, value in values.items() if hasattr(type(self), name)}
        for name, value in {**copy.deepcopy(_DEFAULTS), **values}.items():
            if name not in self._kept:
                setattr(self, name, value)
        if self.dtype is not None:
            self.dtype = str(self.dtype).removeprefix("torch.")
        self._set_labels(num_labels, id2label, label2id)
        self.validate()

    def _set_labels(self, num_labels, id2label, label2id) -> None:
        if id2label is None:
            if num_labels is None and isinstance(label2id, Mapping) and label2id:
                try:
                    id2label = {int(index): name for name, index in label2id.items()}
                except (TypeError, ValueError, OverflowError) as error:
                    raise InputError(f"label2id must map names to class ids, got {label2id!r:.100}") from error
            else:
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
        """How many labels a head has; setting it gives them the names LABEL_0, LABEL_1, ..."""
        return len(self.id2label)

    @num_labels.setter
    def num_labels(self, value: int) -> None:
        self._check_int("num_labels", value)
        if getattr(self, "id2label", None) is None or len(self.id2label) != value:
            self.id2label = {index: f"LABEL_{index}" for index in range(value)}
            self.label2id = {name: index for index, name in self.id2label.items()}

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @property
    def gelu_approximate(self) -> str:
        """What ``ops.gelu`` calls this config's activation: "none" or "tanh"."""
        return "none" if self.hidden_act in ERF_GELU else "tanh"

    @staticmethod
    def _check_int(name: str, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _LIMITS[name]:
            raise InputError(f"{name} must be an integer between 1 and {_LIMITS[name]}, got {value!r:.100}")

    def validate(self) -> None:
        """Raises InputError, one sentence, at the first field that does not fit."""
        for name in _LIMITS:
            self._check_int(name, getattr(self, name))
        if self.hidden_size % self.num_attention_heads:
            raise InputError(
                f"hidden_size must be a multiple of num_attention_heads, got {self.hidden_size} and "
                f"{self.num_attention_heads}"
            )
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"):
            self._check_float(name, 0.0, 1.0, optional=name == "classifier_dropout")
        self._check_float("layer_norm_eps", 0.0, 1.0)
        self._check_float("initializer_range", 0.0, 100.0)
        if self.hidden_act not in ERF_GELU + TANH_GELU:
            raise InputError(f"hidden_act must be one of {', '.join(ERF_GELU + TANH_GELU)}, got {self.hidden_act!r}")
        pad = self.pad_token_id
        if pad is not None and (not isinstance(pad, int) or not 0 <= pad < self.vocab_size):
            raise InputError(f"pad_token_id must be an id below vocab_size {self.vocab_size}, got {pad!r:.100}")
        position_type = getattr(self, "position_embedding_type", "absolute")
        if position_type != "absolute":
            raise InputError(f"position_embedding_type must be 'absolute', got {position_type!r}")
        if self.is_decoder or self.add_cross_attention:
            raise InputError("is_decoder and add_cross_attention must be false: this library holds encoders only")
        problems = ("regression", "single_label_classification", "multi_label_classification")
        if self.problem_type is not None and self.problem_type not in problems:
            raise InputError(f"problem_type must be one of {', '.join(problems)}, got {self.problem_type!r}")
        if self.num_parameters() > _MAX_PARAMETERS:
            raise InputError(f"a model must have at most {_MAX_PARAMETERS} parameters, got {self.num_parameters()}")

    def _check_float(self, name: str, low: float, high: float, optional: bool = False) -> None:
        value = getattr(self, name)
        if value is None and optional:
            return
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            raise InputError(f"{name} must be a number between {low:g} and {high:g}, got {value!r:.100}")

    def num_parameters(self) -> int:
        """Parameters of the encoder with its embeddings and pooler, without heads."""
        h, f = self.hidden_size, self.intermediate_size
        tables = (self.vocab_size + self.max_position_embeddings + self.type_vocab_size) * h + 2 * h
        layer = 4 * (h * h + h) + h * f + f + f * h + h + 4 * h
        return tables + self.num_hidden_layers * layer + h * h + h

    # --- named sizes ---

    @classmethod
    def base(cls, **values: Any) -> BertConfig:
        """BERT-base: 12 layers of 768, 12 heads."""
        return cls.from_name("base", **values)

    @classmethod
    def large(cls, **values: Any) -> BertConfig:
        """BERT-large: 24 layers of 1024, 16 heads."""
        return cls.from_name("large", **values)

    @classmethod
    def from_name(cls, name: str, **values: Any) -> BertConfig:
        """A named size.

        Args:
            name: "base", "large", "tiny", "mini", "small", "medium" (also with "bert-" in front), "4x256" for layers x
                hidden size, "6x768x3" for layers x hidden size x heads (Table 6 of the BERT paper), "L-4_H-256" or
                "L-4_H-256_A-4" (Google's miniatures). Heads are hidden size / 64, the inner layer is 4 x hidden size.
            values: any other field.
        """
        short = name.strip().lower().removeprefix("google/").removeprefix("bert").lstrip("-_")
        short = short.removeprefix("uncased").lstrip("-_")
        match = _NAME.fullmatch(_ALIASES.get(re.sub("-(un)?cased$", "", short), short))
        if match is None or max(map(len, filter(None, match.groups()))) > 9:
            raise InputError(
                f"a model size must be one of {', '.join(_ALIASES)}, LAYERSxHIDDEN as in 4x256 or LAYERSxHIDDENxHEADS "
                f"as in 6x768x3, got {name!r:.100}"
            )
        layers, hidden = int(match[1]), int(match[2])
        if match[3] is None and hidden % 64:
            raise InputError(
                f"the hidden size of {name!r} must be a multiple of 64, or the heads be given as in 4x96x3"
            )
        heads = int(match[3]) if match[3] else hidden // 64
        shape = {
            "num_hidden_layers": layers,
            "hidden_size": hidden,
            "num_attention_heads": heads,
            "intermediate_size": 4 * hidden,
        }
        if short.endswith("-cased"):
            shape["vocab_size"] = 28996  # the published cased vocabulary
        return cls(**{**shape, **values})

    # --- files and dictionaries ---

    def to_dict(self) -> dict[str, Any]:
        """Every field and every unknown key, as config.json holds them."""
        values = {name: value for name, value in vars(self).items() if name != "_kept"}
        return {**copy.deepcopy({**self._kept, **values}), "model_type": self.model_type}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], **overrides: Any) -> BertConfig:
        """From the content of a config.json; ``overrides`` win (``num_labels`` alone renames the labels)."""
        merged = dict(values)
        if "num_labels" in overrides and "id2label" not in overrides:
            named = merged.get("id2label")
            if named is None or len(named) != overrides["num_labels"]:
                merged.pop("id2label", None)
                merged.pop("label2id", None)
        if "id2label" in overrides:
            merged.pop("num_labels", None)
            merged.pop("label2id", None)
        merged.update(overrides)
        if merged.get("id2label") is not None and "num_labels" not in overrides:
            merged.pop("num_labels", None)  # old files hold both, and the names are the ones that count
        return cls(**{str(name): copy.deepcopy(value) for name, value in merged.items()})

    @classmethod
    def from_hf(cls, config: Any) -> BertConfig:
        """From any object with the attributes of transformers' BertConfig; ours is returned as it is."""
        if isinstance(config, cls):
            return config
        if isinstance(config, Mapping):
            return cls.from_dict(config)
        if hasattr(config, "to_dict"):
            values = config.to_dict()
        elif hasattr(config, "hidden_size"):
            values = {name: getattr(config, name) for name in (*_DEFAULTS, "num_labels") if hasattr(config, name)}
        else:
            raise InputError(f"a configuration must be a BertConfig, got {type(config).__name__}")
        return cls.from_dict({name: value for name, value in values.items() if not name.startswith("_")})

    @classmethod
    def from_pretrained(cls, directory: str | os.PathLike, **overrides: Any) -> BertConfig:
        """Reads config.json of a directory (or the file itself)."""
        path = Path(directory)
        if path.is_dir():
            # The second is google-research's, beside its TensorFlow checkpoints.
            names = ("config.json", "bert_config.json")
            path = next((path / name for name in names if (path / name).is_file()), path / names[0])
        if not path.is_file():
            raise InputError(f"{directory}: expected a directory with a config.json, found none")
        try:
            size = path.stat().st_size
            if size > _MAX_CONFIG_BYTES:
                raise InputError(f"{path}: a config.json must be at most {_MAX_CONFIG_BYTES} bytes, got {size}")
            values = json.loads(path.read_text(encoding="utf-8"))
        except InputError:
            raise
        except (OSError, ValueError, RecursionError) as error:
            raise InputError(f"{path}: expected JSON, got something that cannot be read: {error}") from error
        if not isinstance(values, dict):
            raise InputError(f"{path}: expected a JSON object, got {type(values).__name__}")
        try:
            return cls.from_dict(values, **overrides)
        except InputError as error:
            raise InputError(f"{path}: {error}") from error

    def save_pretrained(self, directory: str | os.PathLike) -> Path:
        """Writes config.json into a directory, which is made if need be, and returns its path."""
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / "config.json"
        partial = directory / f"config.json.tmp-{os.getpid()}"
        partial.write_text(self.to_json_string(), encoding="utf-8")
        os.replace(partial, path)
        return path

    def to_json_string(self) -> str:
        return json.dumps(self.to_dict(), indent=2, sort_keys=True, default=str) + "\n"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BertConfig) and self.to_dict() == other.to_dict()

    __hash__ = None

    def __repr__(self) -> str:
        return f"BertConfig {self.to_json_string()}"
