"""What torch.compile leaves alone, where it may; imported only where it is needed, since this imports the compiler."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch._dynamo

from .said import say_once


def uncompiled(reason: str) -> Callable[[Callable], Callable]:
    """A decorator for a function that torch.compile leaves alone; its log of graph breaks gives the reason."""
    has_reason = "reason" in inspect.signature(torch.compiler.disable).parameters  # from torch 2.7 on
    return partial(torch.compiler.disable, **({"reason": reason} if has_reason else {}))


@torch.compiler.assume_constant_result
def must_be_whole(warning: str) -> bool:
    """Whether the graph that torch.compile is tracing must not break, as with fullgraph=True; logs the warning if so.

    The answer becomes a constant of the graph.
    """
    # Not public: in a release without it the answer is no, and torch raises its own error where the graph must break.
    translators = getattr(getattr(torch._dynamo, "symbolic_convert", None), "InstructionTranslator", None)
    translator = getattr(translators, "current_tx", lambda: None)()
    whole = any(getattr(translator, flag, False) for flag in ("one_graph", "error_on_graph_break"))
    if whole:
        warn(warning)
    return whole


@torch.compiler.assume_constant_result
def warn(warning: str) -> None:
    """Logs a warning, once, while a graph is traced, which a call of a logger would break."""
    say_once(warning)


@uncompiled("the host reads an attention_mask to know how many tokens there are")
def call(function: Callable, *inputs: Any, **options: Any) -> Any:
    """function(*inputs, **options), not compiled."""
    return function(*inputs, **options)
