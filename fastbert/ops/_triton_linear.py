"""Dense layers beside the Triton kernels: torch's own products, which are cuBLAS's on a GPU."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import reference
from . import _dispatch, _triton
from .linear_fp8 import product_dtype

# The fast products want rows of whole 16 bytes, and Triton's loads look for multiples of 16 elements. BERT's vocabulary
# of 30,522 is neither; from this many features on copying the weight costs little beside a product of as many rows.
_UNIT, _LARGE = 16, 1024


def _accepts(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> str | None:
    return _triton.why_not(x, parameters=(weight, bias))


@_dispatch.register("linear", "triton", available=_triton.why_missing, accepts=_accepts)
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    features, dtype = weight.shape[0], product_dtype(x)
    lacking = -features % _UNIT
    # In a compiler the number of rows would ask for a graph of its own, and inductor fills up by itself.
    if not lacking or features < _LARGE or dtype == torch.float32 or torch.compiler.is_compiling():
        return reference.linear(x, weight, bias)
    if x.shape[:-1].numel() < _LARGE:
        return reference.linear(x, weight, bias)
    filled = F.pad(weight.to(dtype), (0, 0, 0, lacking))
    return reference.linear(x, filled, None if bias is None else F.pad(bias.to(dtype), (0, lacking)))[..., :features]
