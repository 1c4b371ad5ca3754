"""Whether torch is exporting, tracing or transforming the current pass: it would then not see a kernel's computation,
and would take values that the host reads from a tensor for constants. And whether a mode of the caller's looks on."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import get_proxy_mode

# A kernel may read the memory of these classes; a subclass of theirs may have none, or watch what is done to it.
PLAIN_TENSORS = (Tensor, nn.Parameter)

# Set only during an export, except for strict exports of torch 2.6. Not torch.compiler.is_exporting(): torch 2.6 lacks
# it, and in the older releases that have it, it is true while torch.compile traces.
_EXPORTING = "_is_exporting_flag" if hasattr(torch.compiler, "_is_exporting_flag") else "_is_compiling_flag"


def _nothing(*_: object) -> None:
    return None


# Private functions of torch's: in a release without one, the question is answered with no, and the ops still work.
_of_func = getattr(getattr(torch._C, "_functorch", None), "peek_interpreter_stack", _nothing)
_of_jit = getattr(torch._C, "_get_tracing_state", _nothing)
_modes = getattr(torch._C, "_len_torch_dispatch_stack", _nothing)

_STACKS = tuple(
    (getattr(torch._C, f"_len_torch_{kind}_stack", _nothing), getattr(torch._C, f"_get_{kind}_stack_at", _nothing))
    for kind in ("function", "dispatch")
)


def _is_traced() -> bool:
    return _of_jit() is not None or bool(_modes() and get_proxy_mode() is not None)


def is_exported() -> bool:
    """Whether torch records this pass in a graph that is used for all later batches: torch.export, torch.jit.trace or
    make_fx. torch.compile does not count: it recompiles graphs that no longer hold, and knows our ops."""
    return getattr(torch.compiler, _EXPORTING) if torch.compiler.is_compiling() else _is_traced()


def is_transformed() -> bool:
    """Whether this pass is exported, or runs in forward-mode differentiation or under a transform of torch.func. None
    of these can look into a kernel; all work with the reference."""
    if torch.compiler.is_compiling():
        return getattr(torch.compiler, _EXPORTING)
    differentiated = getattr(forward_ad, "_current_level", -1) >= 0
    return differentiated or _of_func() is not None or _is_traced()


def callers_mode() -> str | None:
    """The class of an active `TorchFunctionMode` or `TorchDispatchMode` of the caller's, which may replace any call of
    torch; None if there is none but torch's own, such as ``with torch.device("cpu")``, and ours."""
    for count, at in _STACKS:
        for number in range(count() or 0):
            cls = type(at(number))
            if not cls.__module__.startswith(("torch.", "fastbert.")):
                return cls.__name__
    return None
