"""Ops that the CPU backend composes of torch's products and of the kernels: linear and the embedding."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from .. import _native, reference
from ..rng import Dropout
from . import _cpu, _dispatch
from ._cpu_dropout import dropout as apply_dropout
from ._cpu_layer_norm import layer_norm


def _accepts_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> str | None:
    return None if x.device.type == "cpu" else f"the CPU kernels take CPU tensors, got one on {x.device}"


# torch's own product is the fastest float32 one here: 0.41 of 0.44 TFLOP/s on the build machine.
_dispatch.register("linear", "cpu", available=_native.why_missing, accepts=_accepts_linear)(reference.linear)


def _accepts_embedding(ids, types, positions, word, token_type, position, weight, bias, eps, **_) -> str | None:
    return _cpu.why_not(word, token_type, position, parameters=(weight, bias))


@_dispatch.register("embedding", "cpu", available=_native.why_missing, accepts=_accepts_embedding)
def embedding(
    input_ids: Tensor,
    token_type_ids: Tensor,
    position_ids: Tensor,
    word: Tensor,
    token_type: Tensor,
    position: Tensor,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    *,
    padding_idx: int | None = None,
    dropout: Dropout | None = None,
) -> Tensor:
    x = F.embedding(input_ids, word, padding_idx) + F.embedding(token_type_ids, token_type)
    x = layer_norm(x, weight, bias, eps, residual=F.embedding(position_ids, position))
    return x if dropout is None else apply_dropout(x, dropout)
