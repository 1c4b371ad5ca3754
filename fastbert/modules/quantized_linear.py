"""The dense layer of int8 inference."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from .. import ops
from ..errors import CheckpointError, InputError


def check_trainable(module: nn.Module, mode: bool) -> None:
    """Raises InputError for training where a part holds int8 weights; to be called before any part takes the mode: one
    that was left in training would drop out."""
    if mode and any(isinstance(part, QuantizedLinear) for part in module.modules()):
        raise InputError("a quantised model is for inference: expected eval(), got train()")


UNSAVABLE = "expected float weights to save, got int8 ones: save the model before quantize"


def _refuse_to_save(*_) -> None:
    raise CheckpointError(UNSAVABLE)


class QuantizedLinear(nn.Module):
    """act(x W^T + b) with W as int8; for inference only.

    Args:
        linear: the layer to take the place of; its weight is finite and on the CPU.
        outliers: (O,) its input channels that stay float32, or None.
        saves: whether it has a ``state_dict``; a library that writes its model's would take the int8 numbers for its
            own weights.

    Raises:
        InputError: the weight cannot be quantised.
        BackendError: the C++ extension is not there.
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
        """x (..., K) -> (..., N); ``activation`` "none" or "tanh" adds that form of GELU."""
        return ops.linear_int8(x, self.packed, self.out_features, self.bias, activation=activation)

    def train(self, mode: bool = True) -> QuantizedLinear:
        check_trainable(self, mode)
        return super().train(False)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        # load_state_dict(strict=False) would pass these over, and take over those of the modules around it.
        if f"{prefix}weight" in state_dict:
            raise CheckpointError(
                f"{prefix.removesuffix('.') or 'a dense layer'}: expected int8 weights to load, got float ones: load "
                "them before quantize"
            )
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}, int8"
