"""When torch looks into a pass, to make something else of it than its numbers: there a kernel, and whatever the host
reads of a tensor, would be missed or taken for a constant."""

from __future__ import annotations

import torch
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import get_proxy_mode

# Set during an export alone, but for the strict one of torch 2.6. Not torch.compiler.is_exporting(): it is not in torch
# 2.6, and to torch.compile's tracing the older releases that have it say that it is true.
_EXPORTING = "_is_exporting_flag" if hasattr(torch.compiler, "_is_exporting_flag") else "_is_compiling_flag"


def _nothing(*_: object) -> None:
    return None


# torch has no public words for these: a torch without one loses the question, not the ops.
_of_func = getattr(getattr(torch._C, "_functorch", None), "peek_interpreter_stack", _nothing)
_of_jit = getattr(torch._C, "_get_tracing_state", _nothing)
_modes = getattr(torch._C, "_len_torch_dispatch_stack", _nothing)


def _is_traced() -> bool:
    return _of_jit() is not None or bool(_modes() and get_proxy_mode() is not None)


def is_exported() -> bool:
    """Whether torch makes a graph of this pass that is kept for every later batch: torch.export, torch.jit.trace, or
    make_fx. torch.compile makes its graphs anew where they no longer hold, and knows our ops."""
    return getattr(torch.compiler, _EXPORTING) if torch.compiler.is_compiling() else _is_traced()


def is_transformed() -> bool:
    """Whether this code is exported, or runs in forward-mode differentiation or under a transform of torch.func. None
    of them sees into a kernel, and all of them into the reference."""
    if torch.compiler.is_compiling():
        return getattr(torch.compiler, _EXPORTING)
    differentiated = getattr(forward_ad, "_current_level", -1) >= 0
    return differentiated or _of_func() is not None or _is_traced()
