"""Tasks of classes and numbers, for texts and words: the classes of a model that is trained further, and the choice to
train a BiLSTM on the features of a frozen model, instead of the model (the paper's section 5.3)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .base import Example, Task
from .heads import match_place, match_rows

if TYPE_CHECKING:
    from torch import Tensor

    from ..model_config import ModelConfig
    from ..models.pretrained import PreTrainedModel
    from .feature_files import Cached
    from .on_features import OnFeatures


class FeatureTask(Task):
    """What such tasks share: how features are chosen, cached during training, and restored with a fine-tuned model.

    Attributes:
        features: the choice of features, one of `features.LAYERS` or "mix"; None to train the model itself.
        feature_units: the units in each direction of the BiLSTM; None for the paper's 768.
        cache: where features are stored during training; None computes them when they are needed.
        restored: whether the task is that of a trained model, whose head is used as it is.
    """

    features: str | None = None
    feature_units: int | None = None
    cache: Cached | None = None
    restored: bool = False

    @property
    def classes(self) -> tuple[Sequence[str], ...]:
        """The names that the classes may have, in the order of their ids, first those in a model's configuration; empty
        for a task without classes."""
        return ()

    def restore(self, config: ModelConfig) -> None:
        self.restored = True
        self.features = getattr(config, "feature_layers", None)
        self.feature_units = getattr(config, "feature_units", None)

    def load(self, head: type[PreTrainedModel], directory: str | os.PathLike, **options: Any) -> PreTrainedModel:
        return self._matched(super().load(head, directory, **options), directory)

    def _matched(self, model: PreTrainedModel, directory: str | os.PathLike) -> PreTrainedModel:
        """The model of a directory, with the rows of its head in the order of `classes`."""
        if not self.restored:
            match_place(model, directory)
            if self.classes:
                match_rows(model, directory, self.classes)
        return model

    def load_head(self, head: type[OnFeatures], directory: str | os.PathLike, **config: Any) -> OnFeatures:
        """A head on the chosen features of the model in a directory; ``config`` overrides values of its
        configuration."""
        from .on_features import load_head

        chosen = {"feature_layers": self.features, "feature_units": self.feature_units}
        return self._matched(load_head(head, directory, **chosen, **config), directory)

    def with_features(self, examples: list[Example]) -> list[Example]:
        """The examples, each with a reference to its stored features if there is a cache."""
        return examples if self.cache is None else self.cache.add(examples)

    def kept_features(self, examples: Sequence[Example]) -> dict[str, Tensor]:
        """The keyword argument ``features`` of a batch, (T, W) float32, if they are stored; none otherwise."""
        return {} if self.cache is None else self.cache.gather(examples)
