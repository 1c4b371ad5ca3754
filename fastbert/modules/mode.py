"""What a model is asked for whatever it was left in: evaluation mode for a while, outputs by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache

from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Puts a model into evaluation mode, and every part of it back into its own afterwards.

    ``model.train(was)`` would not: a part that its owner keeps in evaluation mode, as a frozen encoder under a head
    that is trained, would drop out again from then on.
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
    """The parts in training mode. `modules()` makes up a name for each: a fifth of a short sentence's time."""
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


@lru_cache(maxsize=64)  # asked before every batch, and for one short sentence it counts
def _takes_return_dict(forward: Callable) -> bool:
    return "return_dict" in inspect.signature(forward).parameters


def plain_outputs(model: nn.Module) -> dict[str, bool]:
    """Keywords with which a model returns its outputs by name and no more of them than its head's, whatever its
    config.json says to return; none for a model that has no such choice."""
    if not _takes_return_dict(getattr(model.forward, "__func__", model.forward)):
        return {}
    # A kind that has no field for them takes no such keyword either.
    extra = [name for name in ("output_attentions", "output_hidden_states") if name in model.config.defaults]
    return {"return_dict": True, **dict.fromkeys(extra, False)}
