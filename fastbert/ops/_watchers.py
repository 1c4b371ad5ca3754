"""Whether anything observes ops in torch's dispatcher, and would miss calls that bypass it."""

from __future__ import annotations

import torch
from torch.autograd import profiler

from ..transforms import is_transformed

# Whether this torch has all private functions that `is_watched` and `is_traced` need.
_WATCHERS_ARE_KNOWN = hasattr(profiler, "_is_profiler_enabled") and all(
    hasattr(torch._C, name) for name in ("_len_torch_dispatch_stack", "_len_torch_function_stack", "_get_tracing_state")
)


def is_watched() -> bool:
    """Whether a profiler, a mode, a trace or a transform (`is_traced`) observes the ops in torch's dispatcher."""
    return not _WATCHERS_ARE_KNOWN or profiler._is_profiler_enabled or is_traced()


def has_dispatch_mode() -> bool:
    """Whether a `TorchDispatchMode` is active; also True in a release of torch that cannot tell."""
    return not _WATCHERS_ARE_KNOWN or bool(torch._C._len_torch_dispatch_stack())


def is_traced(own_modes: int = 0) -> bool:
    """Whether a mode, a trace or a transform would miss calls that bypass torch's dispatcher; also True in a release of
    torch that cannot tell.

    Args:
        own_modes: how many of the active `TorchFunctionMode`s are this package's, which need not see such calls.
    """
    if has_dispatch_mode():
        return True
    if torch._C._len_torch_function_stack() > own_modes:
        return True
    return is_transformed()
