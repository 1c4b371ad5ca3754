"""What runs outside of torch.compile's graphs: a pass for which the host reads a mask."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from ..transforms import is_exported


def uncompiled_with_mask(method: Callable) -> Callable:
    """Decorator of a method (tokens, attention_mask, ...) of a module: with a mask it is computed as in a model that is
    not compiled.

    How many tokens there are is in the mask, so that a graph would end where it is read, in every function from there
    up, and be made anew for the rest of each.
    """

    @wraps(method)
    def run(self, *inputs: Any, **options: Any) -> Any:
        mask = inputs[1] if len(inputs) > 1 else options.get("attention_mask")
        if mask is not None and torch.compiler.is_compiling() and not is_exported():
            from .uncompiled import call  # imports the compiler, which takes seconds

            return call(method, self, *inputs, **options)
        return method(self, *inputs, **options)

    return run
