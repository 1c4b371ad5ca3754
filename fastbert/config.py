"""The configuration of a BERT: sizes, rates and labels, under Hugging Face's names. Does not import torch."""

from __future__ import annotations

import re
from typing import Any

from .errors import InputError
from .model_config import COMMON, ModelConfig

# "gelu" is the exact function (by the error function), as in transformers and in google-research's code when the models
# were published; the last version of that code computes the tanh approximation under the same name.
ERF_GELU = ("gelu", "gelu_python")
TANH_GELU = ("gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_python_tanh")

# Upper bounds: a config.json may come from anywhere, and its sizes must not exhaust the machine's memory.
_LIMITS = {
    "vocab_size": 1 << 24,
    "hidden_size": 1 << 16,
    "num_hidden_layers": 1024,
    "num_attention_heads": 1024,
    "intermediate_size": 1 << 18,
    "max_position_embeddings": 1 << 20,
    "type_vocab_size": 1 << 16,
    "num_labels": 100_000,
    "bilstm_units": 1 << 16,
}

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
    "bilstm_units": None,
    "is_decoder": False,
    "position_embedding_type": "absolute",
    "add_cross_attention": False,
    "bos_token_id": None,
    "eos_token_id": None,
    "tie_word_embeddings": True,
    "output_attentions": False,
    "chunk_size_feed_forward": 0,
    **COMMON,
}


def shape_of(size: str, name: str) -> dict[str, int]:
    """The layers, hidden size, heads and inner layer of a named size, as `BertConfig` calls them.

    Args:
        size: a name such as "base", "4x256" or "6x768x3", in lower case.
        name: what the user gave, for the message.

    Raises:
        InputError: there is no such size.
    """
    match = _NAME.fullmatch(_ALIASES.get(size, size))
    if match is None or max(map(len, filter(None, match.groups()))) > 9:
        raise InputError(
            f"a model size must be one of {', '.join(_ALIASES)}, LAYERSxHIDDEN as in 4x256 or LAYERSxHIDDENxHEADS "
            f"as in 6x768x3, got {name!r:.100}"
        )
    layers, hidden = int(match[1]), int(match[2])
    if match[3] is None and hidden % 64:
        raise InputError(f"the hidden size of {name!r} must be a multiple of 64, or the heads be given as in 4x96x3")
    heads = int(match[3]) if match[3] else hidden // 64
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "intermediate_size": 4 * hidden,
    }


class BertConfig(ModelConfig):
    """Sizes and settings of a BERT, with Hugging Face's field names and defaults; unknown keys are kept as attributes.

    ``is_decoder=True`` makes a left-to-right BERT: a token attends to itself and to earlier tokens only, in fine-tuning
    too, and the last token stands for a sequence (docs/models.md). ``position_embedding_type="sinusoidal"`` uses the
    fixed positions of Vaswani et al. 2017, section 3.5. ``bilstm_units`` puts a BiLSTM with that many units in each
    direction between the encoder and a task's head (Devlin et al. 2019, table 5).

    Args:
        values: any field of transformers' BertConfig; ``num_labels`` (or ``id2label``) for heads with labels.

    Raises:
        InputError: a value is out of range, or asks for a feature that the encoder lacks (relative positions,
            cross-attention).
    """

    model_type = "bert"
    defaults = _DEFAULTS
    limits = _LIMITS

    num_attention_heads: int
    intermediate_size: int
    hidden_act: str
    hidden_dropout_prob: float
    attention_probs_dropout_prob: float
    max_position_embeddings: int
    type_vocab_size: int
    layer_norm_eps: float
    use_cache: bool
    classifier_dropout: float | None
    bilstm_units: int | None
    is_decoder: bool
    position_embedding_type: str
    add_cross_attention: bool
    bos_token_id: int | None
    eos_token_id: int | list[int] | None
    tie_word_embeddings: bool
    output_attentions: bool
    chunk_size_feed_forward: int

    @property
    def head_dim(self) -> int:
        """The size of one attention head, ``hidden_size / num_attention_heads``."""
        return self.hidden_size // self.num_attention_heads

    @property
    def objectives(self) -> tuple[str, ...]:
        """The objectives that it can be pre-trained with (`SampleConfig.objective`)."""
        return ("causal",) if self.is_decoder else ("mlm",)

    @property
    def gelu_approximate(self) -> str:
        """The argument ``approximate`` of `ops.gelu` for this activation: "none" or "tanh"."""
        return "none" if self.hidden_act in ERF_GELU else "tanh"

    def validate(self) -> None:
        """Checks every field; raises InputError at the first that does not fit."""
        for name in _LIMITS:
            if name != "bilstm_units" or self.bilstm_units is not None:
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
        # A negative id counts from the end, as torch does in transformers' embeddings.
        if pad is not None and (not isinstance(pad, int) or not -self.vocab_size <= pad < self.vocab_size):
            raise InputError(f"pad_token_id must be an id below vocab_size {self.vocab_size}, got {pad!r:.100}")
        if self.position_embedding_type not in ("absolute", "sinusoidal"):
            raise InputError(
                f"position_embedding_type must be 'absolute' or 'sinusoidal', got {self.position_embedding_type!r}"
            )
        if not isinstance(self.is_decoder, bool):
            raise InputError(f"is_decoder must be true (left to right) or false, got {self.is_decoder!r:.100}")
        super().validate()

    def num_parameters(self) -> int:
        """How many parameters embeddings, encoder and pooler have, without heads."""
        h, f = self.hidden_size, self.intermediate_size
        positions = 0 if self.position_embedding_type == "sinusoidal" else self.max_position_embeddings
        tables = (self.vocab_size + positions + self.type_vocab_size) * h + 2 * h
        layer = 4 * (h * h + h) + h * f + f + f * h + h + 4 * h
        return tables + self.num_hidden_layers * layer + h * h + h

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
        """The configuration of a named size.

        Args:
            name: "base", "large", "tiny", "mini", "small", "medium" (also with "bert-" in front), "4x256" for layers x
                hidden size, "6x768x3" for layers x hidden size x heads (Table 6 of the BERT paper), "L-4_H-256" or
                "L-4_H-256_A-4" (Google's miniatures). Heads are hidden size / 64, the inner layer is 4 x hidden size.
            values: any other field.

        Raises:
            InputError: no size has that name, or a value does not fit.
        """
        short = re.sub("^(google/)?(bert[-_]*)?(uncased[-_]*)?", "", name.strip().lower())
        shape = shape_of(re.sub("-(un)?cased$", "", short), name)
        if short.endswith("-cased"):
            shape["vocab_size"] = 28996  # the published cased vocabulary
        return cls(**{**shape, **values})
