"""When a dense layer may be fused with what follows it, and when it must be called as it is."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

from .. import ops
from . import hooks


def is_plain(module: nn.Module) -> bool:
    """True for an `nn.Linear` with nothing added: no adapter in its place, parametrisation, hook or new forward, and no
    weight that multiplies by code of its own."""
    if type(module) is not nn.Linear or is_watched(module):
        return False
    weight = module._parameters.get("weight")
    return is_plain_tensor(module.weight if weight is None else weight)


PLAIN_TENSORS = (nn.Parameter, Tensor)


def is_plain_tensor(weight: Tensor) -> bool:
    """False for subclasses that compute otherwise, as torchao's quantised weights and DTensor do, and for sparse ones:
    our ops read numbers where those may have none."""
    known = type(weight) in PLAIN_TENSORS or isinstance(weight, (FakeTensor, FunctionalTensor))
    return known and weight.layout is torch.strided


def is_watched(module: nn.Module) -> bool:
    """True where somebody's hooks, also those on all modules, or a forward that somebody put in place, want the module
    itself to be called."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or hooks.on_all_modules()
        or hooks.is_forward_replaced(module)
    )


def split_bias(module: nn.Module, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """Applies a dense layer; its bias is handed back unapplied where the next op can add it.

    Returns:
        (x W^T, bias), or (module(x), None) where the module is not plain.
    """
    if is_plain(module):
        return ops.linear(x, module.weight), module.bias
    return module(x), None


def apply_linear(module: nn.Module, x: Tensor) -> Tensor:
    """x W^T + b."""
    return ops.linear(x, module.weight, module.bias) if is_plain(module) else module(x)


def apply_gelu(module: nn.Module, x: Tensor, approximate: str) -> Tensor:
    """gelu(x W^T + b), in one pass where the layer can (`QuantizedLinear`), else with the bias added by the GELU."""
    if getattr(module, "fuses_gelu", False):
        return module(x, approximate)
    x, bias = split_bias(module, x)
    return ops.gelu(x, bias, approximate)
