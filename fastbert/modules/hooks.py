"""Torch's hooks on modules. Who put one there expects a module to be called, and one op for all layers calls none."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from torch import nn
from torch.nn.modules import module as torch_module

# As torch names a module's own; with "_global" before it, those on all modules.
KINDS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


def on_all_modules() -> bool:
    """Whether there is a hook on all modules; without a loop over `KINDS`, as every part of every pass asks."""
    return bool(
        torch_module._global_forward_hooks
        or torch_module._global_forward_pre_hooks
        or torch_module._global_backward_hooks
        or torch_module._global_backward_pre_hooks
    )


def is_forward_replaced(module: nn.Module) -> bool:
    """Whether somebody gave this very module a forward. That of its class is none: accelerate leaves it there when it
    takes its hooks away."""
    forward = module.__dict__.get("forward")
    if forward is None:
        return False
    return getattr(forward, "__func__", None) is not type(module).forward or forward.__self__ is not module


def is_class_forward_replaced(cls: type) -> bool:
    """Whether somebody gave a class of torch's or transformers' another forward, which all of its modules then compute
    (`BertSelfAttention.forward = mine`), or wrapped the one that it had."""
    return _is_theirs(cls.__module__) and _is_someones(cls.forward)


def _is_theirs(module: str) -> bool:
    return module.partition(".")[0] in ("torch", "transformers")


@lru_cache  # of a few classes, asked of in every pass
def _is_someones(function: Callable | None) -> bool:
    while function is not None:
        # Not __module__, which functools.wraps copies from what it wraps.
        written = getattr(function, "__globals__", None)
        if written is None or not _is_theirs(written["__name__"]):
            return True
        function = getattr(function, "__wrapped__", None)
    return False
