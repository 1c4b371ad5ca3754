"""The configurations of GPT and GPT-2, under Hugging Face's names. Does not import torch."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, ClassVar

from typing_extensions import Self

from .config import ERF_GELU, TANH_GELU, shape_of
from .errors import InputError
from .model_config import COMMON, ModelConfig

_log = logging.getLogger("fastbert")

_LIMITS = {
    "vocab_size": 1 << 24,
    "n_embd": 1 << 16,
    "n_layer": 1024,
    "n_head": 1024,
    "n_positions": 1 << 20,
    "num_labels": 100_000,
}
_MAX_INNER = 1 << 18
_RATES = ("resid_pdrop", "embd_pdrop", "attn_pdrop")

_SHARED: dict[str, Any] = {
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "resid_pdrop": 0.1,
    "embd_pdrop": 0.1,
    "attn_pdrop": 0.1,
    "layer_norm_epsilon": 1e-5,
    "initializer_range": 0.02,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
    "start_token_id": None,
    "delimiter_token_id": None,
    "extract_token_id": None,
    "tie_word_embeddings": True,
    **COMMON,
}


class GPTConfig(ModelConfig):
    """Sizes and settings of a GPT (Radford et al. 2018), whose layers normalise after each branch, as BERT's do.

    ``start_token_id``, ``delimiter_token_id`` and ``extract_token_id`` are those of the paper's input transforms
    (section 3.3); a task's model adds the missing ones to the vocabulary.

    Args:
        values: any field of transformers' OpenAIGPTConfig.

    Raises:
        InputError: a value is out of range, or the activation is not a GELU.
    """

    model_type = "openai-gpt"
    defaults: ClassVar[dict[str, Any]] = {**_SHARED, "vocab_size": 40478, "n_positions": 512, "afn": "gelu"}
    limits = _LIMITS
    prefix = "gpt"
    pre_norm = False

    afn: str
    n_positions: int
    n_embd: int
    n_layer: int
    n_head: int
    resid_pdrop: float
    embd_pdrop: float
    attn_pdrop: float
    layer_norm_epsilon: float
    bos_token_id: int | None
    eos_token_id: int | None
    start_token_id: int | None
    delimiter_token_id: int | None
    extract_token_id: int | None
    tie_word_embeddings: bool

    # The names that all kinds of configurations share; the fields have GPT's own names.
    is_decoder = True
    objectives = ("causal",)
    # Segments are separated by the delimiter token; a batch's token types are ignored.
    type_vocab_size = None

    @property
    def hidden_size(self) -> int:
        """``n_embd``, by BERT's name."""
        return self.n_embd

    @property
    def num_hidden_layers(self) -> int:
        """``n_layer``, by BERT's name."""
        return self.n_layer

    @num_hidden_layers.setter
    def num_hidden_layers(self, value: int) -> None:
        self.n_layer = value

    @property
    def num_attention_heads(self) -> int:
        """``n_head``, by BERT's name."""
        return self.n_head

    @property
    def head_dim(self) -> int:
        """The size of one attention head, ``n_embd / n_head``."""
        return self.n_embd // self.n_head

    @property
    def intermediate_size(self) -> int:
        """The width of the feed-forward layers, by BERT's name."""
        return getattr(self, "n_inner", None) or 4 * self.n_embd

    @property
    def max_position_embeddings(self) -> int:
        """``n_positions``, by BERT's name."""
        return self.n_positions

    @max_position_embeddings.setter
    def max_position_embeddings(self, value: int) -> None:
        self.n_positions = value

    @property
    def activation(self) -> str:
        """The name of the activation as transformers' table has it: GPT's "gelu" is the tanh approximation."""
        return "gelu_new" if self.afn == "gelu" else self.afn

    @property
    def gelu_approximate(self) -> str:
        """The argument ``approximate`` of `ops.gelu` for this activation: "none" or "tanh"."""
        return "none" if self.activation in ERF_GELU else "tanh"

    def softmax_scale(self, layer: int) -> float:
        """The factor on the attention scores in layer number ``layer``."""
        return self.head_dim**-0.5

    def validate(self) -> None:
        """Checks every field; raises InputError at the first that does not fit."""
        for name in _LIMITS:
            self._check_int(name, getattr(self, name))
        inner = getattr(self, "n_inner", None)
        if inner is not None and (type(inner) is not int or not 1 <= inner <= _MAX_INNER):
            raise InputError(f"n_inner must be none or an integer between 1 and {_MAX_INNER}, got {inner!r:.100}")
        if self.n_embd % self.n_head:
            raise InputError(f"n_embd must be a multiple of n_head, got {self.n_embd} and {self.n_head}")
        for name in _RATES:
            self._check_float(name, 0.0, 1.0)
        self._check_float("layer_norm_epsilon", 0.0, 1.0)
        self._check_float("initializer_range", 0.0, 100.0)
        if self.activation not in ERF_GELU + TANH_GELU:
            raise InputError(
                f"the activation must be one of {', '.join(ERF_GELU + TANH_GELU)}, got {self.activation!r:.100}"
            )
        if isinstance(self.bos_token_id, int) and self.bos_token_id >= self.vocab_size:
            # transformers' default in a model with a smaller vocabulary: nothing reads it there either.
            _log.warning(
                "bos_token_id %d is not below vocab_size %d: it is ignored", self.bos_token_id, self.vocab_size
            )
            self.bos_token_id = None
        for name in ("pad", "bos", "start", "delimiter", "extract"):
            token = getattr(self, f"{name}_token_id")
            if token is not None and (not isinstance(token, int) or not 0 <= token < self.vocab_size):
                raise InputError(
                    f"{name}_token_id must be an id below vocab_size {self.vocab_size}, got {token!r:.100}"
                )
        super().validate()

    def num_parameters(self) -> int:
        """The number of parameters of the decoder with its embeddings, without heads."""
        h, f = self.n_embd, self.intermediate_size
        layer = 4 * (h * h + h) + h * f + f + f * h + h + 4 * h
        return (self.vocab_size + self.n_positions) * h + self.n_layer * layer + 2 * h * self.pre_norm

    def forward_flops(self, tokens: int, squares: int, predicted: float) -> float:
        """FLOPs of a forward pass (`train.flops`).

        Args:
            tokens: the number of tokens.
            squares: the sum of the squares of the sequences' lengths.
            predicted: the number of predicted tokens.
        """
        h, f = self.n_embd, self.intermediate_size
        return self.n_layer * ((8 * h * h + 4 * h * f) * tokens + 4 * h * squares) + predicted * 2 * h * self.vocab_size

    @classmethod
    def from_name(cls, name: str, **values: Any) -> Self:
        """A named size: "gpt-" or "gpt2-" followed by one of BERT's sizes ("gpt-small", "gpt2-4x256", "gpt-6x768x3");
        "gpt" or "gpt2" alone is the published model of 12 layers of 768 units."""
        size = name.strip().lower().removeprefix(cls.prefix).lstrip("-_") or "base"
        shape = shape_of(size, name)
        names = {"num_hidden_layers": "n_layer", "hidden_size": "n_embd", "num_attention_heads": "n_head"}
        return cls(**{**{names[k]: v for k, v in shape.items() if k in names}, **values})

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], **overrides: Any) -> Self:
        """As `ModelConfig.from_dict`; ``model_type`` decides between GPT and GPT-2."""
        if cls is GPTConfig and values.get("model_type") == GPT2Config.model_type:
            return GPT2Config.from_dict(values, **overrides)
        return super().from_dict(values, **overrides)

    def complete_from(self, shards: Any) -> None:
        """Takes the start and end tokens of texts from the vocabulary of a `data.shards.ShardSet`, if given."""
        if shards is not None:
            special = shards.manifest.special_ids
            self.bos_token_id, self.eos_token_id = special.cls, special.sep


class GPT2Config(GPTConfig):
    """Sizes and settings of a GPT-2 (Radford et al. 2019, section 2.3): a LayerNorm before each branch, one at the end.

    Args:
        values: any field of transformers' GPT2Config.
    """

    model_type = "gpt2"
    defaults: ClassVar[dict[str, Any]] = {
        **_SHARED,
        "vocab_size": 50257,
        "n_positions": 1024,
        "n_inner": None,
        "activation_function": "gelu_new",
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
    }
    prefix = "gpt2"
    pre_norm = True

    n_inner: int | None
    activation_function: str
    scale_attn_weights: bool
    scale_attn_by_inverse_layer_idx: bool

    @property
    def activation(self) -> str:
        """The name of the activation as transformers' table has it."""
        return self.activation_function

    def softmax_scale(self, layer: int) -> float:
        scale = super().softmax_scale(layer) if self.scale_attn_weights else 1.0
        return scale / (layer + 1) if self.scale_attn_by_inverse_layer_idx else scale
