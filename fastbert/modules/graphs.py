"""What runs outside torch.compile's graphs: passes in which the host reads a mask."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from ..transforms import is_exported


def uncompiled_with_mask(method: Callable) -> Callable:
    """Decorator for a method (tokens, attention_mask, ...) of a module: a call with a mask is not compiled, unless the
    graph must be whole.

    The number of tokens depends on the mask's values, so a graph would break where the mask is read, in that function
    and in every caller of it, and another one be compiled for the rest of each. In a whole graph (fullgraph=True)
    `layout.lay_out` reads no mask, and padding is computed.
    """

    @wraps(method)
    def run(self, *inputs: Any, **options: Any) -> Any:
        mask = inputs[1] if len(inputs) > 1 else options.get("attention_mask")
        if mask is not None and torch.compiler.is_compiling() and not is_exported():
            from .uncompiled import call, must_be_whole  # imports the compiler, which takes seconds

            warning = (
                f"{type(self).__name__}: in one whole graph (fullgraph=True) padding is computed, since the number of "
                "tokens depends on the mask's values; leave fullgraph=True out, or give packed tokens"
            )
            if not must_be_whole(warning):
                return call(method, self, *inputs, **options)
        return method(self, *inputs, **options)

    return run
