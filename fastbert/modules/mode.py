"""Evaluation mode for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Puts a model into evaluation mode, and every part of it back into its own afterwards.

    ``model.train(was)`` would not: a part that its owner keeps in evaluation mode, as a frozen encoder under a head
    that is trained, would drop out again from then on.
    """
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
