"""The configuration of an ELMo (Peters et al. 2018): sizes, rates and labels. Does not import torch."""

from __future__ import annotations

from typing import Any, ClassVar

from .config import shape_of
from .data.characters import MAX_CHARACTERS, NUM_CHARACTERS, character_table
from .errors import InputError
from .model_config import COMMON, ModelConfig

# (width, number) of the convolutions of the published model, whose projection is 512.
PAPER_FILTERS = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))
PAPER_PROJECTION = 512

_MAX_SIZE = 1 << 18

_DEFAULTS: dict[str, Any] = {
    "vocab_size": 30522,
    "hidden_size": 2 * PAPER_PROJECTION,
    "num_hidden_layers": 2,
    "lstm_size": 4096,
    "character_embedding_size": 16,
    "character_filters": [list(pair) for pair in PAPER_FILTERS],
    "num_highway_layers": 2,
    "num_characters": NUM_CHARACTERS,
    "max_characters": MAX_CHARACTERS,
    "lstm_cell_clip": None,
    "lstm_projection_clip": None,
    "hidden_dropout_prob": 0.1,
    "classifier_dropout": None,
    "initializer_range": 0.02,
    "max_position_embeddings": None,
    "pad_token_id": 0,
    **COMMON,
}


class ElmoConfig(ModelConfig):
    """Sizes and settings of an ELMo (Peters et al. 2018).

    Attributes:
        characters: (vocab_size, max_characters), the characters of each word of the vocabulary, for a new model. Not in
            config.json: a model keeps this table with its weights.

    Args:
        values: any of these fields.
            ``hidden_size``: the size of a token's vector, half of it from each direction, so the LSTMs project to
            ``hidden_size / 2``; ``num_hidden_layers`` LSTM layers of ``lstm_size`` cells in each direction;
            ``character_filters``: (width, number) of each convolution over a word's ``max_characters`` characters,
            whose embeddings have the size ``character_embedding_size``; ``num_highway_layers``;
            ``lstm_cell_clip``, ``lstm_projection_clip``: bounds of an LSTM's two states, 3 in the published model, or
            None, with which a GPU can use torch's LSTM; ``hidden_dropout_prob`` before and after each LSTM layer;
            ``initializer_range`` of task heads. There is no limit to the length of a sequence.

    Raises:
        InputError: a value is out of range.
    """

    model_type = "elmo"
    objectives = ("causal",)
    defaults: ClassVar[dict[str, Any]] = _DEFAULTS
    limits: ClassVar[dict[str, int]] = {
        "vocab_size": 1 << 24,
        "hidden_size": _MAX_SIZE,
        "num_hidden_layers": 64,
        "lstm_size": _MAX_SIZE,
        "character_embedding_size": 1 << 16,
        "num_characters": 1 << 16,
        "max_characters": 1 << 12,
        "num_labels": 100_000,
    }

    characters: Any = None

    hidden_dropout_prob: float
    classifier_dropout: float | None
    lstm_size: int
    character_embedding_size: int
    character_filters: list[list[int]]
    num_highway_layers: int
    num_characters: int
    max_characters: int
    lstm_cell_clip: float | None
    lstm_projection_clip: float | None

    @property
    def projection_size(self) -> int:
        """The size of each direction's output, ``hidden_size / 2``."""
        return self.hidden_size // 2

    def validate(self) -> None:
        """Checks every field; raises InputError at the first that does not fit."""
        for name in self.limits:
            self._check_int(name, getattr(self, name))
        if self.hidden_size % 2 or self.projection_size >= self.lstm_size:
            raise InputError(
                f"hidden_size must be even and half of it below lstm_size, got {self.hidden_size} and {self.lstm_size}"
            )
        if self.num_characters < NUM_CHARACTERS:
            raise InputError(f"num_characters must be at least {NUM_CHARACTERS}, got {self.num_characters}")
        highways = self.num_highway_layers
        if isinstance(highways, bool) or not isinstance(highways, int) or not 0 <= highways <= 64:
            raise InputError(f"num_highway_layers must be an integer between 0 and 64, got {highways!r:.100}")
        self._check_filters()
        for name in ("hidden_dropout_prob", "classifier_dropout"):
            self._check_float(name, 0.0, 1.0, optional=name == "classifier_dropout")
        for name in ("lstm_cell_clip", "lstm_projection_clip"):
            self._check_float(name, 1e-6, 1e6, optional=True)
        self._check_float("initializer_range", 0.0, 100.0)
        pad = self.pad_token_id
        if pad is not None and (not isinstance(pad, int) or not 0 <= pad < self.vocab_size):
            raise InputError(f"pad_token_id must be an id below vocab_size {self.vocab_size}, got {pad!r:.100}")
        super().validate()

    def _check_filters(self) -> None:
        filters = self.character_filters
        whole = isinstance(filters, (list, tuple)) and bool(filters)
        pairs = whole and all(isinstance(p, (list, tuple)) and len(p) == 2 for p in filters)
        if not pairs or not all(type(n) is int and 1 <= n <= _MAX_SIZE for pair in filters for n in pair):
            raise InputError(f"character_filters must be pairs of width and number, got {filters!r:.100}")
        widest = max(width for width, _ in filters)
        if widest > self.max_characters:
            raise InputError(f"a filter must be at most max_characters {self.max_characters} wide, got {widest}")
        self.character_filters = [list(pair) for pair in filters]

    @property
    def num_filters(self) -> int:
        """The number of outputs of all convolutions for a word."""
        return sum(number for _, number in self.character_filters)

    def complete_from(self, shards: Any) -> None:
        """Sets ``characters`` from the vocabulary of a `data.shards.ShardSet`; None leaves them unset."""
        if shards is not None:
            self.characters = character_table(shards.tokenizer(), self.max_characters)

    def to_dict(self) -> dict[str, Any]:
        """Every field and every unknown key, as in config.json; ``characters`` is not a field."""
        values = super().to_dict()
        values.pop("characters", None)
        return values

    def forward_flops(self, tokens: float, squares: float, predicted: float) -> float:
        """FLOPs of a forward pass: the LSTMs, and the softmax layer once for each direction. The character CNN is not
        counted, just as other models' embeddings are not: a word that occurs often in a batch is computed once."""
        return 2 * self.lstm_parameters() * tokens + 4 * predicted * self.projection_size * self.vocab_size

    def lstm_parameters(self) -> int:
        """The number of weights of all LSTM layers, without biases: the multiply-adds of a token."""
        projection, cells = self.projection_size, self.lstm_size
        return 2 * self.num_hidden_layers * (8 * projection * cells + cells * projection)

    def num_parameters(self) -> int:
        """The number of parameters of the character CNN and the LSTMs, without the softmax layer."""
        e, total = self.character_embedding_size, self.num_filters
        characters = self.num_characters * e + sum(n * (width * e + 1) for width, n in self.character_filters)
        highways = self.num_highway_layers * 2 * (total * total + total)
        projection = total * self.projection_size + self.projection_size
        biases = 2 * self.num_hidden_layers * 8 * self.lstm_size
        return characters + highways + projection + self.lstm_parameters() + biases

    @classmethod
    def from_name(cls, name: str, **values: Any) -> ElmoConfig:
        """An ELMo as large as a BERT: "elmo-mini", "elmo-base", "elmo-4x256" for the sizes that `BertConfig` names, and
        "elmo" or "elmo-original" for that of the paper.

        A BERT of L layers of H units has 12 L H^2 weights in its layers, and each token is multiplied by all of them.
        Here two LSTM layers in each direction have the same number: 18 C H, with C cells and a projection of H / 2, so
        C = 2 L H / 3. Parameters, arithmetic per token (apart from attention's share, which grows with the length) and
        the size H of the vectors for the tasks are thus equal. Words cost as much as the character CNN and not V x H;
        it has the paper's filters, their numbers scaled by H / 1024.
        """
        size = name.strip().lower().removeprefix("elmo").lstrip("-_")
        if size in ("", "original"):
            return cls(**values)
        bert = shape_of(size, name)
        layers, hidden = bert["num_hidden_layers"], bert["hidden_size"]
        share = hidden / (2 * PAPER_PROJECTION)
        shape = {
            "hidden_size": hidden,
            "lstm_size": max(8 * round(2 * layers * hidden / 3 / 8), hidden),
            "character_filters": [[width, max(round(number * share), 1)] for width, number in PAPER_FILTERS],
        }
        return cls(**{**shape, **values})
