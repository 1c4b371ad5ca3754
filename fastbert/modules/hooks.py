"""Whether hooks are on modules, or their forward or a function that they call was replaced: then they must be called,
not computed by a fused op."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import lru_cache
from types import BuiltinFunctionType

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules import module as torch_module

# Torch's attributes for the hooks of a module; with "_global" before the name, for hooks on all modules.
KINDS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")

# What the layers of transformers and torch compute by: where each function is looked up in a call, and its name.
_FUNCTIONS = (
    *((F, name) for name in ("linear", "embedding", "layer_norm", "dropout", "softmax")),
    *((F, "scaled_dot_product_attention"), (F, "multi_head_attention_forward"), (torch, "matmul")),
)

# What torch's modules computed by when `look_for_replaced` was last called, and whether any of it is someone's.
_seen: tuple[Callable, ...] = ()
_are_replaced = False


def look_for_replaced() -> None:
    """Looks whether someone has replaced what torch's dense layers, norms and tables compute by. Called at the start of
    a pass, since it takes longer than `must_call_all`. One answer for all threads, which share what was replaced."""
    global _seen, _are_replaced
    if torch.compiler.is_compiling():
        return
    found = (F.linear, F.layer_norm, F.embedding, nn.Linear.forward, nn.LayerNorm.forward, nn.Embedding.forward)
    if found != _seen:
        _are_replaced = any(map(is_someones, found))
        _seen = found


def must_call_all() -> bool:
    """Whether all modules must be called: there are hooks on all of them, or someone has replaced what torch computes
    them by. Fast, since it is called for every part in every pass."""
    return _are_replaced or on_all_modules()


def on_all_modules() -> bool:
    """Whether there is a hook on all modules. Without a loop over `KINDS`, as fast."""
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
    return is_someones(cls.forward)


def replaced_method(cls: type) -> str | None:
    """The name of the forward of a class of torch or transformers, or of a method that this calls, if it was replaced;
    else None."""
    if not _is_theirs(cls.__module__):
        return None
    return next((name for name in ("forward", *called_methods(cls)) if is_someones(getattr(cls, name))), None)


@lru_cache  # for a few classes, called in every pass
def called_methods(cls: type) -> tuple[str, ...]:
    """The methods that the forward of a class of torch or transformers calls, such as `feed_forward_chunk` of a layer;
    none for other classes."""
    code = getattr(inspect.unwrap(cls.forward), "__code__", None) if _is_theirs(cls.__module__) else None
    return tuple(name for name in getattr(code, "co_names", ()) if inspect.isfunction(getattr(cls, name, None)))


def replaced_function() -> str | None:
    """The name of a function of torch that someone has replaced (``F.linear = mine``), so that layers compute something
    else; None if there is none."""
    return next((name for room, name in _FUNCTIONS if is_someones(getattr(room, name))), None)


def _is_theirs(module: str) -> bool:
    # DeepSpeed's F.linear computes what torch's does.
    return module.partition(".")[0] in ("torch", "transformers", "deepspeed")


@lru_cache  # for a few classes, called in every pass
def is_someones(function: Callable | None) -> bool:
    """Whether a function is neither torch's nor transformers', or wrapped by one that is not."""
    while function is not None and not isinstance(function, BuiltinFunctionType):
        # Not __module__, which functools.wraps copies from the wrapped function.
        written = getattr(function, "__globals__", None)
        if written is None or not _is_theirs(written["__name__"]):
            return True
        function = getattr(function, "__wrapped__", None)
    return False
