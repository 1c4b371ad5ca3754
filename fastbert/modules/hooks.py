"""Torch's hooks on modules. Who put one there expects a module to be called, and one op for all layers calls none."""

from __future__ import annotations

from torch import nn
from torch.nn.modules import module as torch_module

# As torch names a module's own; with "_global" before it, those on all modules.
KINDS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


def on_all_modules() -> bool:
    return any(getattr(torch_module, f"_global{kind}") for kind in KINDS)


def is_forward_replaced(module: nn.Module) -> bool:
    """Whether somebody gave this very module a forward. That of its class is none: accelerate leaves it there when it
    takes its hooks away."""
    forward = module.__dict__.get("forward")
    if forward is None:
        return False
    return getattr(forward, "__func__", None) is not type(module).forward or forward.__self__ is not module
