"""Whether hooks are on modules, or their forward was replaced: then they must be called, not computed by a fused op."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from torch import nn
from torch.nn.modules import module as torch_module

# Torch's attributes for the hooks of a module; with "_global" before the name, for hooks on all modules.
KINDS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


def on_all_modules() -> bool:
    """Whether there is a hook on all modules. Without a loop over `KINDS`, since it is called for every part in every
    pass."""
    return bool(
        torch_module._global_forward_hooks
        or torch_module._global_forward_pre_hooks
        or torch_module._global_backward_hooks
        or torch_module._global_backward_pre_hooks
    )


def is_forward_replaced(module: nn.Module) -> bool:
    """Whether this module instance was given another forward. That of its class does not count, which accelerate leaves
    as an attribute when it removes its hooks."""
    forward = module.__dict__.get("forward")
    if forward is None:
        return False
    return getattr(forward, "__func__", None) is not type(module).forward or forward.__self__ is not module


def is_class_forward_replaced(cls: type) -> bool:
    """Whether the forward of a class of torch or transformers was replaced for all its modules
    (`BertSelfAttention.forward = mine`) or wrapped."""
    return _is_theirs(cls.__module__) and _is_someones(cls.forward)


def _is_theirs(module: str) -> bool:
    return module.partition(".")[0] in ("torch", "transformers")


@lru_cache  # for a few classes, called in every pass
def _is_someones(function: Callable | None) -> bool:
    while function is not None:
        # Not __module__, which functools.wraps copies from the wrapped function.
        written = getattr(function, "__globals__", None)
        if written is None or not _is_theirs(written["__name__"]):
            return True
        function = getattr(function, "__wrapped__", None)
    return False
