"""A call that torch.compile leaves alone; imported only while it traces, since torch.compiler.disable imports it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

# The reason that torch.compile(fullgraph=True) gives in its error, from torch 2.7 on.
_REASON = (
    "the host reads an attention_mask to know how many tokens there are; leave fullgraph=True out, or give "
    "packed tokens (a PackedBatch, or cu_seqlens and max_seqlen)"
)
_REASONS = {"reason": _REASON} if "reason" in inspect.signature(torch.compiler.disable).parameters else {}


@partial(torch.compiler.disable, **_REASONS)
def call(function: Callable, *inputs: Any, **options: Any) -> Any:
    """function(*inputs, **options), not compiled."""
    return function(*inputs, **options)
