"""Tasks that can train a BiLSTM on the features of a frozen model, instead of the model (the paper's section 5.3)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .base import Example, Task

if TYPE_CHECKING:
    from torch import Tensor

    from ..model_config import ModelConfig
    from .feature_files import Cached
    from .on_features import OnFeatures


class FeatureTask(Task):
    """What such tasks share: how features are chosen, cached during training, and restored with a fine-tuned model.

    Attributes:
        features: the choice of features, one of `features.LAYERS` or "mix"; None to train the model itself.
        feature_units: the units in each direction of the BiLSTM; None for the paper's 768.
        cache: where features are stored during training; None computes them when they are needed.
    """

    features: str | None = None
    feature_units: int | None = None
    cache: Cached | None = None

    def restore(self, config: ModelConfig) -> None:
        self.features = getattr(config, "feature_layers", None)
        self.feature_units = getattr(config, "feature_units", None)

    def load_head(self, head: type[OnFeatures], directory: str | os.PathLike, **config: Any) -> OnFeatures:
        """A head on the chosen features of the model in a directory; ``config`` overrides values of its
        configuration."""
        from .on_features import load_head

        chosen = {"feature_layers": self.features, "feature_units": self.feature_units}
        return load_head(head, directory, **chosen, **config)

    def with_features(self, examples: list[Example]) -> list[Example]:
        """The examples, each with a reference to its stored features if there is a cache."""
        return examples if self.cache is None else self.cache.add(examples)

    def kept_features(self, examples: Sequence[Example]) -> dict[str, Tensor]:
        """The keyword argument ``features`` of a batch, (T, W) float32, if they are stored; none otherwise."""
        return {} if self.cache is None else self.cache.gather(examples)
