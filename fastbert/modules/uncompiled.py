"""What torch.compile leaves alone; imported only where it is needed, since this imports the compiler."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch


def uncompiled(reason: str) -> Callable[[Callable], Callable]:
    """A decorator for a function that torch.compile leaves alone; with fullgraph=True, its error gives the reason."""
    has_reason = "reason" in inspect.signature(torch.compiler.disable).parameters  # from torch 2.7 on
    return partial(torch.compiler.disable, **({"reason": reason} if has_reason else {}))


@uncompiled(
    "the host reads an attention_mask to know how many tokens there are; leave fullgraph=True out, or give "
    "packed tokens (a PackedBatch, or cu_seqlens and max_seqlen)"
)
def call(function: Callable, *inputs: Any, **options: Any) -> Any:
    """function(*inputs, **options), not compiled."""
    return function(*inputs, **options)
