"""Calls that do not depend on how a model was left: in evaluation mode for a block, with outputs by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache

from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Puts a model into evaluation mode, and afterwards each part back into its own mode.

    ``model.train(was)`` would put all parts into one mode: dropout would be on again in a part that is kept in
    evaluation mode, such as a frozen encoder under a head that is trained.
    """
    training = _training(model)
    if training:
        model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _training(model: nn.Module) -> list[nn.Module]:
    """The parts in training mode. Not by ``modules()``, which builds a name for each part: that would take a fifth of
    the time of a short sentence."""
    found, waiting, seen = [], [model], {model}
    while waiting:
        module = waiting.pop()
        if module.training:
            found.append(module)
        for child in module._modules.values():
            if child is not None and child not in seen:
                seen.add(child)
                waiting.append(child)
    return found


@lru_cache(maxsize=64)  # called before every batch, and its time counts before a short sentence
def _takes_return_dict(forward: Callable) -> bool:
    return "return_dict" in inspect.signature(forward).parameters


def plain_outputs(model: nn.Module) -> dict[str, bool]:
    """Keywords that make a model return named outputs, and only those of its head, whatever its config.json says; none
    for a model whose forward does not take them."""
    if not _takes_return_dict(getattr(model.forward, "__func__", model.forward)):
        return {}
    # A kind of model whose configuration lacks these fields does not take the keywords either.
    extra = [name for name in ("output_attentions", "output_hidden_states") if name in model.config.defaults]
    return {"return_dict": True, **dict.fromkeys(extra, False)}
