"""The dtypes of products: which two may be multiplied, and which one autocast gives to the result."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import InputError
from ..wording import dtype_name


def check_dtypes(x: Tensor, weight: Tensor) -> None:
    """Raises InputError for two dtypes that torch's own dense layer refuses to multiply (our kernels might convert)."""
    if x.dtype != weight.dtype and not torch.is_autocast_enabled(x.device.type):
        got, expected = (dtype_name(t.dtype) for t in (x, weight))
        raise InputError(
            f"hidden states must have the dtype of the weights, {expected}, got {got}: convert one of them, or compute "
            f"under torch.autocast"
        )


def product_dtype(x: Tensor) -> torch.dtype:
    """The dtype of a product's result: autocast's, or that of x without autocast."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
