"""Torch's hooks on modules. Who put one there expects a module to be called, and one op for all layers calls none."""

from __future__ import annotations

from torch.nn.modules import module as torch_module

# As torch names a module's own; with "_global" before it, those on all modules.
KINDS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


def on_all_modules() -> bool:
    return any(getattr(torch_module, f"_global{kind}") for kind in KINDS)
