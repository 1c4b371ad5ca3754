"""Dense layers: computed by our ops, fused with what follows, unless the module itself must be called."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

from .. import ops, transforms
from . import hooks


def is_plain(module: nn.Module) -> bool:
    """Whether a module is an `nn.Linear` with nothing added: no adapter in its place, no parametrisation, hook or other
    forward, and no tensor subclass as its weight."""
    if type(module) is not nn.Linear or is_watched(module):
        return False
    weight = module._parameters.get("weight")
    return is_plain_tensor(module.weight if weight is None else weight)


def is_plain_tensor(weight: Tensor) -> bool:
    """False for sparse tensors and for subclasses that compute in another way, such as torchao's quantised weights and
    DTensor: our ops read memory that these may not have."""
    known = type(weight) in transforms.PLAIN_TENSORS or isinstance(weight, (FakeTensor, FunctionalTensor))
    return known and weight.layout is torch.strided


def is_watched(module: nn.Module) -> bool:
    """Whether the module itself must be called: it has hooks, all modules must be called (`hooks.must_call_all`), or
    its forward was replaced."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or hooks.must_call_all()
        or hooks.is_forward_replaced(module)
    )


def split_bias(module: nn.Module, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """Applies a dense layer, but leaves its bias to the next op if that is possible.

    Returns:
        (x W^T, bias); or (module(x), None) if the module is not plain.
    """
    if is_plain(module):
        return ops.linear(x, module.weight), module.bias
    return module(x), None


def apply_linear(module: nn.Module, x: Tensor) -> Tensor:
    """x W^T + b, x (..., K) -> (..., N), by `ops.linear` or, if the module is not plain, by calling it."""
    return ops.linear(x, module.weight, module.bias) if is_plain(module) else module(x)


def apply_gelu(module: nn.Module, x: Tensor, approximate: str) -> Tensor:
    """gelu(x W^T + b): in one pass if the layer can (`QuantizedLinear`), else with the bias added by the GELU."""
    if getattr(module, "fuses_gelu", False):
        return module(x, approximate)
    x, bias = split_bias(module, x)
    return ops.gelu(x, bias, approximate)
