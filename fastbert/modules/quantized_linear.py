"""The dense layer of int8 inference."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .. import ops
from ..errors import CheckpointError, InputError
from ..transforms import is_exported


def check_trainable(module: nn.Module, mode: bool) -> None:
    """Raises InputError if ``mode`` is training and a part has int8 weights. To be called before the mode of any part
    is set: parts left in training mode would apply dropout."""
    if mode and any(isinstance(part, QuantizedLinear) for part in module.modules()):
        raise InputError("a quantised model is for inference: expected eval(), got train()")


UNSAVABLE = "expected float weights to save, got int8 ones: save the model before quantize"


def _refuse_to_save(*_) -> None:
    raise CheckpointError(UNSAVABLE)


class QuantizedLinear(nn.Module):
    """act(x W^T + b) with W as int8; for inference only.

    Args:
        linear: the layer to replace; its weight is finite and on the CPU.
        outliers: (O,) int64, the input channels that stay float32, or None.
        saves: whether it has a ``state_dict``. Another library would save the int8 numbers as if they were its weights.

    Raises:
        InputError: the weight cannot be quantised.
        BackendError: the C++ extension was not built.
    """

    fuses_gelu = True  # `apply_gelu` of modules/linear.py

    def __init__(self, linear: nn.Linear, outliers: Tensor | None = None, saves: bool = True) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.register_buffer("packed", ops.pack_int8(linear.weight, outliers))
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach().clone())
        super().train(False)
        if not saves:
            self.register_state_dict_pre_hook(_refuse_to_save)

    def forward(self, x: Tensor, activation: str | None = None) -> Tensor:
        """x (..., K) -> (..., N). ``activation`` "none" or "tanh" applies that form of GELU; None applies none. Raises
        InputError under torch.export, which has no numbers to unpack."""
        if torch.compiler.is_compiling() and is_exported():
            raise InputError(
                "expected a float model to export, got one with int8 weights: export it before quantize, or use "
                "torch.jit.trace"
            )
        return ops.linear_int8(x, self.packed, self.out_features, self.bias, activation=activation)

    def train(self, mode: bool = True) -> QuantizedLinear:
        check_trainable(self, mode)
        return super().train(False)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        # load_state_dict(strict=False) would ignore these, but load the weights of the modules around this one.
        if f"{prefix}weight" in state_dict:
            raise CheckpointError(
                f"{prefix.removesuffix('.') or 'a dense layer'}: expected int8 weights to load, got float ones: load "
                "them before quantize"
            )
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}, int8"
